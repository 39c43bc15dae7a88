/* paging.h - userfaultfd: faults of managed memory come to a thread of this library's. */
#ifndef FARBUS_CLIENT_PAGING_H
#define FARBUS_CLIENT_PAGING_H

#include <stdbool.h>
#include <stdint.h>

/* Open it and start the thread.  `any`: also where it can't serve system calls.  0, or -errno
 * (-EPERM: not in this process).  `fault` is told of each on that thread, which waits for the page until it is
 * filled or woken. */
typedef void paging_fault(uint64_t address, bool write, bool protected_page);
int paging_open(bool any, paging_fault *fault);
/* Faults in [address, address + bytes) come to the thread from now on. */
int paging_register(uint64_t address, uint64_t bytes);
/* A page that is there becomes write-protected, or writable again. */
int paging_protect(uint64_t address, uint64_t bytes, bool protect);
/* Put bytes in the place of pages that are not there; who waits for them goes on. */
int paging_fill(uint64_t address, const void *from, uint64_t bytes, bool protect);
void paging_wake(uint64_t address, uint64_t bytes);

#endif
