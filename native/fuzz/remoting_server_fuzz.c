/* remoting_server_fuzz.c - hostile sessions at the remoting server.
 *
 * Each session is a process of its own, over a socket or shared memory: hello, a context and some
 * memory, then frames whose fields are drawn from what such a session could hold and
 * from what nobody should send.  Every eighth says what is no hello, or no handshake behind one,
 * to a server that wants TLS.  The same number gives the same session.  A session
 * that ends by a signal, by a sanitizer or not at all is a finding.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../generated/cuda_abi.h"
#include "../generated/wire_ops.h"
#include "../server/server.h"
#include "../transport/ground/clofork.h"
#include "../transport/rings/memory.h"
#include "../transport/rings/shm.h"
#include "../transport/sockets/socket.h"
#include "../transport/transport.h"
#include "../wire/frame.h"
#include "../wire/handle.h"
#include "../wire/hello.h"
#include "../wire/image.h"
#include "../wire/proof.h"
#include "rounds.h"

#define FRAMES_MAX 60u
#define TAIL_MAX 8192u
#define SESSION_MAX_S 20u

#define CONTEXT (1ull << 43 | 1ull << 4)
#define MEMORY_BYTES 8192u
#define PINNED_BYTES 16384u

static uint8_t secret[WIRE_SECRET_BYTES];
static uint64_t random_state, memory;
/* Every other session goes on over shared memory after the hello. */
static bool over_memory;
static struct transport shared;

static uint64_t random_next(void)
{
	return random_of(&random_state);
}

static uint64_t random_below(uint64_t bound)
{
	return random_next() % bound;
}

/* A handle as a client makes them: kind, generation, slot. */
static uint64_t random_handle(void)
{
	return random_below(HANDLE_PINNED + 1) << 43 | random_below(2) << 27 | random_below(3) << 4;
}

/* Most of the time of the kind that is wanted: few of any kind would be one. */
static uint64_t random_of_kind(enum handle_kind kind)
{
	return random_below(8) ? (uint64_t)kind << 43 | (1 + random_below(4)) << 4 : random_handle();
}

static uint64_t random_word(void)
{
	switch (random_below(12)) {
	case 0:
		return 0;
	case 1:
		return 1 + random_below(2);		/* the special streams */
	case 2:
		return CONTEXT;
	case 3:
	case 4:
		return random_handle();
	case 5:
		return memory;
	case 6:
		return memory + random_below(MEMORY_BYTES);
	case 7:
		return random_below(4096);
	case 8:
		return 1ull << random_below(64);
	case 9:
		return (1ull << random_below(64)) - 1;
	case 10:
		return random_below(64) << 32 | random_below(64);
	default:
		return random_next();
	}
}

static bool send_some(int descriptor, const char **at, size_t *bytes)
{
	ssize_t sent;

	if (over_memory) {
		void *room;

		sent = shared.ops->room(&shared, &room, *bytes);
		if (sent <= 0)
			return false;
		memcpy(room, *at, (size_t)sent);
		if (shared.ops->written(&shared, (size_t)sent, false))
			return false;
	} else {
		sent = send(descriptor, *at, *bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent < 0) {
			struct timespec nap = { .tv_nsec = 100000 };

			if (errno != EAGAIN && errno != EINTR)
				return false;
			nanosleep(&nap, NULL);
			return true;
		}
	}
	*at += sent;
	*bytes -= (size_t)sent;
	return true;
}

/* What the server answers is dropped.  false: it has closed the connection. */
static bool drop_answers(int descriptor)
{
	char replies[65536];

	if (!over_memory)
		return recv(descriptor, replies, sizeof(replies), MSG_DONTWAIT) != 0;
	return shared.ops->read(&shared, replies, sizeof(replies)) != -EPIPE;
}

static bool send_all(int descriptor, const void *data, size_t bytes)
{
	const char *at = data;

	while (bytes) {
		/* Its answers are read on the way, or both would wait for each other. */
		if (!drop_answers(descriptor) || !send_some(descriptor, &at, &bytes))
			return false;
	}
	return true;
}

static bool read_all(int descriptor, void *data, size_t bytes)
{
	if (over_memory)
		return !transport_read_all(&shared, data, bytes, SESSION_MAX_S * 1000);
	return !bytes || recv(descriptor, data, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

/* One called operation and its reply's fixed part. */
static bool call(int descriptor, enum wire_op op, const void *request, void *reply)
{
	const struct wire_op_info *info = &wire_op_infos[op];
	struct wire_header header = {
		.length = info->request_size,
		.opcode = (uint16_t)op,
		.lane = 1,
		.argument = CONTEXT,
	};

	if (!send_all(descriptor, &header, sizeof(header)) ||
	    !send_all(descriptor, request, info->request_size))
		return false;
	return read_all(descriptor, &header, sizeof(header)) && !header.argument &&
	       read_all(descriptor, reply, info->reply_size);
}

static bool session_begin(int descriptor)
{
	struct wire_hello hello = {
		.magic = WIRE_HELLO_MAGIC,
		.major = WIRE_PROTOCOL_MAJOR,
		.byte_order = WIRE_BYTE_ORDER,
		.spec_version = WIRE_SPEC_VERSION,
		.capabilities = WIRE_CAPABILITY_IMAGES,
	};
	const struct wire_primary_retain retain = { .context = CONTEXT };
	const struct wire_memory_alloc alloc = { .bytes = MEMORY_BYTES };
	struct wire_memory_alloc_reply allocated;
	struct wire_hello_reply reply;
	struct wire_device device;
	struct shm *shm = NULL;
	int ring = -1;

	if (transport_socket_init(&shared, descriptor))
		return false;
	if (random_below(2)) {
		if (transport_shm_make(&shm, &ring))
			return false;
		hello.capabilities |= WIRE_CAPABILITY_SHARED_MEMORY;
		if (wire_hello_prove(&hello, secret))
			return false;
		if (transport_write_descriptor(&shared, &hello, sizeof(hello), ring))
			return false;
		close(ring);
	} else if (wire_hello_prove(&hello, secret) || !send_all(descriptor, &hello, sizeof(hello))) {
		return false;
	}
	if (!read_all(descriptor, &reply, sizeof(reply)) || reply.status != WIRE_HELLO_OK)
		return false;
	for (uint32_t i = 0; i < reply.device_count; i++)
		if (!read_all(descriptor, &device, sizeof(device)))
			return false;
	if (shm) {
		if (!(reply.capabilities & WIRE_CAPABILITY_SHARED_MEMORY))
			return false;
		transport_shm_switch(&shared, shm, false);
		over_memory = true;
	}
	if (!call(descriptor, WIRE_OP_PRIMARY_RETAIN, &retain, &allocated) ||
	    !call(descriptor, WIRE_OP_MEMORY_ALLOC, &alloc, &allocated))
		return false;
	memory = allocated.address;
	return true;
}

/* One frame.  false: the server has closed the connection. */
static bool frame_send(int descriptor)
{
	static uint8_t frame[sizeof(struct wire_header) + WIRE_FIXED_BYTES + TAIL_MAX];
	struct wire_header header = { .lane = (uint16_t)(1 + random_below(4)) };
	const struct wire_op_info *info;
	size_t fixed, tail = 0;

	do {
		header.opcode = (uint16_t)random_below(WIRE_OP_LIMIT);
		info = &wire_op_infos[header.opcode];
	} while (!info->name && random_below(500));
	fixed = info->name ? info->request_size : 0;
	for (size_t at = 0; at < fixed; at += 8) {
		uint64_t word = random_word();

		memcpy(frame + sizeof(header) + at, &word, fixed - at < 8 ? fixed - at : 8);
	}
	if (header.opcode == WIRE_OP_MANAGEMENT) {
		/* Queries and devices that there are, most of the time. */
		uint32_t query[2] = { (uint32_t)random_below(310), (uint32_t)random_below(2) };

		memcpy(frame + sizeof(header), query, sizeof(query));
	}
	if (info->name && info->request_tail)
		tail = random_below(random_below(4) ? 64 : TAIL_MAX);
	if (tail > info->request_tail)
		tail = info->request_tail;
	for (size_t at = 0; at < tail; at++)
		frame[sizeof(header) + fixed + at] = (uint8_t)random_next();
	header.length = (uint32_t)(fixed + tail);
	header.argument = random_below(20) ? CONTEXT : random_word();
	if (!random_below(400))
		header.length = (uint32_t)random_word();
	if (!random_below(400))
		header.lane = (uint16_t)random_next();
	memcpy(frame, &header, sizeof(header));
	return send_all(descriptor, frame, sizeof(header) + fixed + tail);
}

static bool frame_write(int descriptor, enum wire_op op, const void *fixed, size_t bytes)
{
	const struct wire_header header = {
		.length = (uint32_t)bytes,
		.opcode = (uint16_t)op,
		.lane = (uint16_t)(1 + random_below(4)),
		.argument = CONTEXT,
	};

	return send_all(descriptor, &header, sizeof(header)) && send_all(descriptor, fixed, bytes);
}

/* ---- pinned memory that both share ---- */

static uint64_t random_pinned(void)
{
	return random_of_kind(HANDLE_PINNED);
}

/* Of the memory's own bytes, or somebody's wish. */
static uint64_t random_pinned_bytes(void)
{
	return random_below(8) ? PINNED_BYTES : random_word();
}

/* Memory as a client makes it, with too few seals, with holes, or none at all. */
static int random_descriptor(void)
{
	int descriptor = -1;
	void *mapped;

	if (random_below(4)) {
		if (transport_memory_make("farbus-remoting-pinned", PINNED_BYTES, &mapped, &descriptor))
			return -1;
		munmap(mapped, PINNED_BYTES);
		return descriptor;
	}
	if (!random_below(3))
		return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	descriptor = memfd_create("farbus-remoting-pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (descriptor >= 0 && ftruncate(descriptor, (off_t)random_below(2 * PINNED_BYTES)) < 0) {
		close(descriptor);
		return -1;
	}
	return descriptor;
}

/* Rows that fit the memory of both sides, most of the time. */
static struct wire_copy_pinned random_pinned_copy(void)
{
	struct wire_copy_pinned copy = {
		.pinned = random_pinned(),
		.offset = random_below(PINNED_BYTES / 2),
		.device = memory + random_below(MEMORY_BYTES / 2),
		.width = 1 + random_below(128),
		.height = 1 + random_below(16),
		.to_device = (uint32_t)random_below(2),
		.stream = random_below(4) ? 1 + random_below(2) : random_handle(),
	};
	uint64_t *const fields[] = {
		&copy.pinned, &copy.offset, &copy.host_pitch, &copy.device,
		&copy.pitch,  &copy.width,  &copy.height,     &copy.stream,
	};

	copy.host_pitch = copy.width + random_below(2) * random_below(128);
	copy.pitch = copy.width + random_below(2) * random_below(128);
	while (!random_below(12))
		*fields[random_below(sizeof(fields) / sizeof(fields[0]))] = random_word();
	return copy;
}

/* Where nothing is, as a rule: AddressSanitizer's memory begins at 0x600000000000. */
#define MAPPED_AT 0x200000000000ull

/* Some of its life, in any order: offered with a descriptor or without, pinned, mapped, copied from and
 * to, and let go of. */
static bool pinned_send(int descriptor)
{
	unsigned steps = (unsigned)(1 + random_below(16));

	while (steps--) {
		const uint64_t pinned = random_pinned();
		const struct wire_pinned_offer offer = { .pinned = pinned, .bytes = random_pinned_bytes() };
		const struct wire_pinned_offer_file part = {
			.pinned = pinned,
			.offset = random_below(4) ? 4096 * random_below(4) : random_word(),
			.bytes = random_pinned_bytes(),
		};
		const struct wire_pinned_register named = { .pinned = pinned };
		const struct wire_pinned_map there = {
			.pinned = pinned,
			.address = random_below(8) ? MAPPED_AT + 4096 * random_below(64) : random_word(),
		};
		const struct wire_copy_pinned copy = random_pinned_copy();
		const struct wire_primary_reset reset = { 0 };
		int passed = -1;
		bool sent;

		switch (random_below(9)) {
		case 0:
			if (over_memory && random_below(8))
				passed = random_descriptor();
			if (passed >= 0) {
				/* Where there is no room for it, nobody waits: the offer then has none. */
				(void)transport_shm_pass(&shared, passed);
				clofork_close(passed);
			}
			sent = random_below(4) ? frame_write(descriptor, WIRE_OP_PINNED_OFFER, &offer, sizeof(offer))
					       : frame_write(descriptor, WIRE_OP_PINNED_OFFER_FILE, &part, sizeof(part));
			if (sent && random_below(8))
				sent = random_below(2) ? frame_write(descriptor, WIRE_OP_PINNED_REGISTER, &named,
								     sizeof(named))
						       : frame_write(descriptor, WIRE_OP_PINNED_MAP, &there,
								     sizeof(there));
			break;
		case 1:
			sent = frame_write(descriptor, WIRE_OP_PINNED_REGISTER, &named, sizeof(named));
			break;
		case 2:
			sent = frame_write(descriptor, WIRE_OP_PINNED_RELEASE, &named, sizeof(named));
			break;
		case 3:
			/* It goes with its context. */
			sent = random_below(4) ||
			       frame_write(descriptor, WIRE_OP_PRIMARY_RESET, &reset, sizeof(reset));
			break;
		case 4:
			sent = frame_write(descriptor, WIRE_OP_PINNED_MAP, &there, sizeof(there));
			break;
		default:
			sent = frame_write(descriptor, WIRE_OP_COPY_PINNED, &copy, sizeof(copy));
		}
		if (!sent)
			return false;
	}
	return true;
}

/* ---- memory apart from addresses, and multicast objects ---- */

/* Functions by their numbers, which never change (remoting/spec/functions/virtual_memory.py). */
enum virtual_call {
	ADDRESS_FREE = 317, ADDRESS_RESERVE = 318, CREATE = 331, MAP = 358, RELEASE = 376, RETAIN = 377, SET_ACCESS = 378,
	UNMAP = 380, ADD_DEVICE = 465, BIND_ADDRESS = 466, BIND_MEMORY = 467, CREATE_TEAM = 468, UNBIND = 470,
};

#define GRANULE (2ull << 20)
/* Where nothing is, as a rule; so much is reserved there. */
#define VIRTUAL_AT 0x210000000000ull
#define VIRTUAL_BYTES (8 * GRANULE)

/* Arguments as they travel, one behind the other. */
struct arguments {
	uint8_t bytes[128];
	size_t count;
};

static void put(struct arguments *to, const void *value, size_t bytes)
{
	memcpy(to->bytes + to->count, value, bytes);
	to->count += bytes;
}

static void put_word(struct arguments *to, uint64_t word)
{
	put(to, &word, sizeof(word));
}

static void put_number(struct arguments *to, uint32_t number)
{
	put(to, &number, sizeof(number));
}

/* For a result there is a place, most of the time. */
static void put_place(struct arguments *to)
{
	put(to, &(uint8_t){ random_below(32) > 0 }, 1);
}

static void put_named(struct arguments *to)
{
	put_word(to, random_of_kind(HANDLE_NAMED));
}

static void put_address(struct arguments *to)
{
	put_word(to, random_below(16) ? VIRTUAL_AT + GRANULE * random_below(VIRTUAL_BYTES / GRANULE) : random_word());
}

static void put_offset(struct arguments *to)
{
	put_word(to, random_below(16) ? GRANULE * random_below(3) : random_word());
}

static void put_size(struct arguments *to)
{
	put_word(to, random_below(16) ? GRANULE * (1 + random_below(2)) : random_word());
}

static void put_device(struct arguments *to)
{
	put_number(to, random_below(16) ? 0 : (uint32_t)random_word());
}

static void put_flags(struct arguments *to)
{
	put_word(to, random_below(32) ? 0 : random_word());
}

static void arguments_make(struct arguments *to, enum virtual_call call)
{
	const uint32_t location[2] = { CU_MEM_LOCATION_TYPE_DEVICE, 0 };

	switch (call) {
	case ADDRESS_RESERVE:
		put_word(to, random_below(16) ? VIRTUAL_BYTES : random_word());
		put_word(to, 0);
		put_word(to, random_below(16) ? VIRTUAL_AT : random_word());
		put_flags(to);
		put_place(to);
		break;
	case CREATE:
		put_size(to);
		put_flags(to);
		put_place(to);
		put(to, &(uint8_t){ 1 }, 1);
		put_number(to, CU_MEM_ALLOCATION_TYPE_PINNED);
		put_number(to, (uint32_t)random_below(2));
		put(to, location, sizeof(location));
		put_word(to, 0);
		put_word(to, 0);
		put(to, location, sizeof(location));
		put_device(to);
		break;
	case CREATE_TEAM:
		put_place(to);
		put(to, &(uint8_t){ 1 }, 1);
		/* One of two waits for the other without end. */
		put_word(to, random_below(16) ? 1 : random_below(4));
		put_size(to);
		put_word(to, random_below(2));
		put_flags(to);
		break;
	case MAP:
		put_address(to);
		put_size(to);
		put_offset(to);
		put_flags(to);
		put_named(to);
		break;
	case RETAIN:
		put_place(to);
		put_address(to);
		break;
	case SET_ACCESS:
		put_address(to);
		put_size(to);
		put_word(to, 1);
		put(to, &(uint8_t){ 1 }, 1);
		put(to, location, sizeof(location));
		put_number(to, random_below(8) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : (uint32_t)random_word());
		put(to, location, sizeof(location));
		put_device(to);
		break;
	case ADDRESS_FREE:
		put_word(to, random_below(16) ? VIRTUAL_AT : random_word());
		put_word(to, random_below(16) ? VIRTUAL_BYTES : random_word());
		break;
	case UNMAP:
		put_address(to);
		put_size(to);
		break;
	case RELEASE:
		put_named(to);
		break;
	case ADD_DEVICE:
		put_named(to);
		put_device(to);
		break;
	case BIND_ADDRESS:
		put_offset(to);
		put_address(to);
		put_size(to);
		put_flags(to);
		put_named(to);
		break;
	case BIND_MEMORY:
		put_offset(to);
		put_offset(to);
		put_size(to);
		put_flags(to);
		put_named(to);
		put_named(to);
		break;
	case UNBIND:
		put_offset(to);
		put_size(to);
		put_named(to);
		put_device(to);
		break;
	}
}

static bool virtual_call_send(int descriptor, enum virtual_call call)
{
	const bool waits = call == UNMAP || call == ADDRESS_FREE;
	struct arguments arguments = { 0 };

	put_word(&arguments, call);
	arguments_make(&arguments, call);
	while (!random_below(64))
		arguments.bytes[random_below(arguments.count)] ^= (uint8_t)random_next();
	return frame_write(descriptor, waits ? WIRE_OP_CALL_WAITING : WIRE_OP_CALL, arguments.bytes, arguments.count);
}

/* Some of the life of such memory, in any order, on several lanes at once, behind what most of it begins with. */
static bool virtual_send(int descriptor)
{
	static const enum virtual_call first[] = { ADDRESS_RESERVE, CREATE, CREATE_TEAM, ADD_DEVICE, ADD_DEVICE, CREATE, ADD_DEVICE };
	static const enum virtual_call calls[] = {
		CREATE, CREATE_TEAM, ADD_DEVICE, ADD_DEVICE, ADDRESS_RESERVE, MAP, MAP, MAP, SET_ACCESS, BIND_ADDRESS, BIND_ADDRESS,
		BIND_MEMORY, BIND_MEMORY, BIND_MEMORY, BIND_MEMORY, UNBIND, UNBIND, UNMAP, RETAIN, RELEASE, ADDRESS_FREE,
	};
	unsigned steps = (unsigned)(1 + random_below(96));

	for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++)
		if (!virtual_call_send(descriptor, first[i]))
			return false;
	while (steps--)
		if (!virtual_call_send(descriptor, calls[random_below(sizeof(calls) / sizeof(calls[0]))]))
			return false;
	return true;
}

/* ---- images ---- */

/* What a client with managed memory asks an image for: a variable that is managed, one that is not,
 * and none. */
static bool variables_send(int descriptor, uint64_t library)
{
	static const char *const names[] = { "managed", "plain", "f", "", "nothing" };
	struct {
		struct wire_library_variable fixed;
		char name[16];
	} request = { .fixed = { .library = library } };
	unsigned times = (unsigned)random_below(4);

	while (times--) {
		const char *name = names[random_below(sizeof(names) / sizeof(names[0]))];
		size_t bytes = strlen(name) + (random_below(64) ? 1 : 0);

		memcpy(request.name, name, bytes);
		if (!frame_write(descriptor, WIRE_OP_LIBRARY_VARIABLE, &request,
				 sizeof(request.fixed) + bytes))
			return false;
	}
	return true;
}

/* Tile IR of some sections, at most 1,500 bytes; how many. */
static uint64_t tile_make(uint8_t *at)
{
	static const uint8_t header[] = "\177TileIR\0\15\1\0";
	uint64_t bytes = sizeof(header);

	memcpy(at, header, sizeof(header));
	for (unsigned i = (unsigned)random_below(8); i; i--) {
		const uint8_t size = (uint8_t)random_below(128);
		const bool aligned = random_below(2);

		at[bytes++] = (uint8_t)(1 + random_below(8)) | (aligned ? 0x80 : 0);
		at[bytes++] = size;
		if (aligned) {
			at[bytes++] = 8;
			bytes = (bytes + 7) & ~7ull;
		}
		bytes += size;
	}
	return bytes + 1;
}

/* PTX, Tile IR or a container, whole but for some bytes: sent, loaded, and loaded again by its digest, which
 * may be another's.  Some are large enough to be kept. */
static bool image_send(int descriptor)
{
	static const char text[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
				   ".visible .global .attribute(.managed) .align 8 .b8 managed[100];\n"
				   ".visible .global .align 8 .b8 plain[100];\n"
				   ".visible .entry f()\n{\nret;\n}\n//";
	static uint8_t frame[sizeof(struct wire_header) + sizeof(struct wire_image_load) + 256 + TAIL_MAX];
	struct wire_header header = { .lane = 1, .argument = CONTEXT };
	struct wire_image head = { .form = WIRE_IMAGE_PTX, .part_count = 1 };
	struct wire_blob_part part = { .blob = random_of_kind(HANDLE_BLOB) };
	struct wire_image_load load = { .library = random_of_kind(HANDLE_LIBRARY), .blob = part.blob };
	uint64_t size = sizeof(text) + random_below(1000);
	uint8_t *image = frame + sizeof(header) + sizeof(part);

	memset(frame, 0, sizeof(frame));
	if (random_below(4)) {
		memset(image + sizeof(head) + 8, 'x', size - 1);
		memcpy(image + sizeof(head) + 8, text, sizeof(text) - 1);
	} else {
		head.form = WIRE_IMAGE_TILE;
		size = tile_make(image + sizeof(head) + 8);
	}
	memcpy(image, &head, sizeof(head));
	memcpy(image + sizeof(head), &size, sizeof(size));
	load.bytes = part.total = sizeof(head) + 8 + ((size + 7) & ~7ull);
	while (!random_below(3))
		/* PTX has a fuzzer of its own (softgpu_ptx_fuzz.c), and says what it refuses. */
		image[random_below(sizeof(head) + 8)] ^= (uint8_t)random_next();
	if (random_below(4))
		wire_digest(image, load.bytes, (uint8_t *)load.digest);
	load.info_bytes = (uint32_t)random_below(3) * 100;
	load.error_bytes = (uint32_t)random_below(3) * 100;
	load.is_module = (uint32_t)random_below(2);
	load.jit_count = (uint32_t)random_below(3);
	header.opcode = WIRE_OP_BLOB_PART;
	header.length = (uint32_t)(sizeof(part) + part.total);
	memcpy(frame, &header, sizeof(header));
	memcpy(frame + sizeof(header), &part, sizeof(part));
	if (!send_all(descriptor, frame, sizeof(header) + header.length))
		return false;
	for (int again = 0; again < 2; again++) {
		size_t options = load.jit_count * 16;

		header.opcode = WIRE_OP_IMAGE_LOAD;
		header.length = (uint32_t)(sizeof(load) + options);
		memcpy(frame, &header, sizeof(header));
		memcpy(frame + sizeof(header), &load, sizeof(load));
		for (size_t at = 0; at < options; at += 8) {
			uint64_t word = at % 16 ? random_word() : random_below(40);

			memcpy(frame + sizeof(header) + sizeof(load) + at, &word, sizeof(word));
		}
		if (!send_all(descriptor, frame, sizeof(header) + header.length) ||
		    !variables_send(descriptor, load.library))
			return false;
		load.blob = 0;
		load.library = random_of_kind(HANDLE_LIBRARY);
	}
	return true;
}

/* Look-ups in libraries, the ends of libraries and of their context, on several lanes at once. */
static bool libraries_send(int descriptor)
{
	static const enum wire_op ops[] = {
		WIRE_OP_LIBRARY_FUNCTION, WIRE_OP_LIBRARY_GLOBAL,  WIRE_OP_LIBRARY_VARIABLE,
		WIRE_OP_LIBRARY_KERNELS,  WIRE_OP_LIBRARY_ATTRIBUTES, WIRE_OP_LIBRARY_UNLOAD,
	};
	const struct wire_primary_reset reset = { 0 };
	const struct wire_primary_retain retain = { .context = CONTEXT };
	unsigned steps = (unsigned)(1 + random_below(12));

	if (!image_send(descriptor))
		return false;
	while (steps--) {
		struct {
			struct wire_library_kernels fixed;
			char name[8];
		} request = { .fixed = { .library = random_of_kind(HANDLE_LIBRARY) } };
		enum wire_op op = ops[random_below(sizeof(ops) / sizeof(ops[0]))];
		size_t bytes = wire_op_infos[op].request_size;
		char *name = (char *)&request + bytes;

		if (!random_below(8)) {
			if (!frame_write(descriptor, WIRE_OP_PRIMARY_RESET, &reset, sizeof(reset)) ||
			    !frame_write(descriptor, WIRE_OP_PRIMARY_RETAIN, &retain, sizeof(retain)))
				return false;
			continue;
		}
		if (wire_op_infos[op].request_tail) {
			memcpy(name, random_below(2) ? "f" : "g", 2);
			bytes += 2;
		}
		if (!frame_write(descriptor, op, &request, bytes))
			return false;
	}
	return true;
}

static bool is_preface(uint64_t number)
{
	return number % 8 == 7;
}

/* What comes before a session: a hello, and what should be a handshake. */
static void preface_send(int descriptor)
{
	struct wire_hello hello = {
		.magic = WIRE_HELLO_MAGIC,
		.major = WIRE_PROTOCOL_MAJOR,
		.byte_order = WIRE_BYTE_ORDER,
		.spec_version = WIRE_SPEC_VERSION,
		.capabilities = random_below(8) ? WIRE_CAPABILITY_TLS : random_word(),
	};
	uint8_t record[512];

	if (wire_hello_prove(&hello, secret))
		_exit(3);
	while (!random_below(3))
		((uint8_t *)&hello)[random_below(sizeof(hello))] ^= (uint8_t)random_next();
	if (!send_all(descriptor, &hello, random_below(8) ? sizeof(hello) : random_below(sizeof(hello))))
		return;
	while (random_below(6)) {
		size_t bytes = random_below(sizeof(record));

		for (size_t i = 0; i < sizeof(record); i++)
			record[i] = (uint8_t)random_next();
		if (random_below(4)) {
			/* Of a handshake, and as long as it says it is. */
			record[0] = (uint8_t)(20 + random_below(4));
			record[1] = record[2] = 3;
			record[3] = (uint8_t)(bytes >> 8);
			record[4] = (uint8_t)bytes;
			record[5] = (uint8_t)random_below(3);	/* ClientHello is 1 */
			bytes += 5;
		}
		if (!send_all(descriptor, record, bytes < sizeof(record) ? bytes : sizeof(record)))
			return;
	}
}

static bool something_send(int descriptor)
{
	switch (random_below(20)) {
	case 0:
		return image_send(descriptor);
	case 1:
		return pinned_send(descriptor);
	case 2:
		return libraries_send(descriptor);
	case 3:
	case 4:
		return virtual_send(descriptor);
	default:
		return frame_send(descriptor);
	}
}

/* The client's side, in a process of its own. */
static void attack(int descriptor, uint64_t number)
{
	char replies[65536];
	unsigned frames;

	alarm(SESSION_MAX_S);
	random_state = number;
	if (is_preface(number)) {
		preface_send(descriptor);
		shutdown(descriptor, SHUT_WR);
		while (recv(descriptor, replies, sizeof(replies), 0) > 0)
			;
		_exit(0);
	}
	if (!session_begin(descriptor)) {
		fprintf(stderr, "remoting_server: the session does not begin\n");
		_exit(3);
	}
	frames = (unsigned)random_below(FRAMES_MAX);
	/* Most sessions end early, by what nobody should send. */
	if (over_memory && random_below(2) && !pinned_send(descriptor))
		frames = 0;
	while (frames-- && something_send(descriptor))
		;
	while (over_memory && drop_answers(descriptor) && random_below(64))
		;
	shutdown(descriptor, over_memory ? SHUT_RDWR : SHUT_WR);
	while (!over_memory && recv(descriptor, replies, sizeof(replies), 0) > 0)
		;
	_exit(0);
}

/* 0, or what went wrong. */
static int session(uint64_t number)
{
	int pair[2], attacked, status;
	pid_t server, client;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
		return -1;
	server = fork();
	if (server == 0) {
		const struct server_options options = {
			.descriptor = pair[0],
			.libcuda = getenv("FARBUS_FUZZ_LIBCUDA"),
			.secret = secret,
			.tls = is_preface(number),
			.image_directory = getenv("FARBUS_FUZZ_IMAGES"),
			.image_bytes = 64 << 10,
			/* Every third of those with a lease's account. */
			.memory_limit = number % 3 ? 0 : 32 << 20,
		};
		char why[256];
		int rc;

		close(pair[1]);
		alarm(SESSION_MAX_S);
		rc = server_serve(&options, why, sizeof(why));
		if (is_preface(number)) {
			if (!rc)
				fprintf(stderr, "remoting_server: somebody is let in who has no key\n");
			_exit(rc ? 0 : 2);
		}
		if (rc)
			fprintf(stderr, "remoting_server: %s\n", why);
		_exit(rc ? 2 : 0);
	}
	close(pair[0]);
	client = fork();
	if (client == 0)
		attack(pair[1], number);
	close(pair[1]);
	if (server < 0 || client < 0 || waitpid(server, &status, 0) < 0 ||
	    waitpid(client, &attacked, 0) < 0)
		return -1;
	return status ? status : attacked;
}

int main(int argc, char **argv)
{
	if (!getenv("FARBUS_FUZZ_LIBCUDA")) {
		fprintf(stderr, "%s: set FARBUS_FUZZ_LIBCUDA to a libcuda.so.1\n", argv[0]);
		return 2;
	}
	return rounds_run(argc, argv, "remoting_server", session);
}
