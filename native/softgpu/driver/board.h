/* board.h - the board: what a software GPU is on this node, beyond any
 * one process.
 *
 * A board has an identity that never changes (UUID, PCI address, both derived
 * from the node's machine id and the board's index), a model (compute
 * capability, multiprocessors, memory), and accounts: memory and busy time of
 * every process that uses it.  Model and accounts live in
 * /dev/shm/farbus-softgpu-<uuid>, which the first user makes and the last one
 * removes; users that were killed are swept by whoever looks next.
 *
 * libcuda.so.1 and libnvidia-ml.so.1 of the software GPU both stand on this.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_BOARD_H
#define FARBUS_SOFTGPU_DRIVER_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "board_options.h"

#define BOARD_USER_MAX 256	/* processes that use one board at a time */

struct board_process {
	pid_t pid;
	uint64_t used_bytes;
};

struct board;

/* Become a user of the board.  The model of a board that has users already
 * wins over the wanted one; *adopted then tells that they differ.
 * 0, -EUSERS (too many users), or the errno of the shared memory. */
int board_open(struct board **out, unsigned index, const struct board_model *wanted,
	       bool *adopted, struct board_diagnostic *why);
/* Look at a board without being its user.  0, or -ENOENT when nobody uses it. */
int board_peek(struct board **out, unsigned index);
void board_close(struct board *board);
/* Give up the account but leave the board mapped: for the end of a process,
 * when threads that use the board may still run. */
void board_retire(struct board *board);

/* Remove every board of this machine whose users were all killed, whatever its
 * name: nobody may ever ask for that board again. */
void board_sweep_node(void);

const struct board_identity *board_identity(const struct board *board);
const struct board_model *board_model(const struct board *board);

/* Count memory of this process.  0 or -ENOMEM when the board is full. */
int board_memory_take(struct board *board, uint64_t bytes);
void board_memory_give(struct board *board, uint64_t bytes);
uint64_t board_memory_used(struct board *board);

/* A process shows up among the board's processes while it has contexts. */
void board_context_enter(struct board *board);
void board_context_leave(struct board *board);
/* When a process began, in the kernel's ticks; 0 when there is none. */
uint64_t board_process_start(pid_t pid);
size_t board_processes(struct board *board, struct board_process *list, size_t room);

/* Around every kernel; may overlap from several threads. */
void board_busy_begin(struct board *board);
void board_busy_end(struct board *board);
/* Share of the last second in which kernels ran, in percent. */
unsigned board_utilization(struct board *board);
/* Nanoseconds in which kernels ran, summed over the users there are now. */
uint64_t board_busy_ns(struct board *board);

#endif
