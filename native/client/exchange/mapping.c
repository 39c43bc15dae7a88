/* Whether kernels use pinned memory by its address, and what a program is told where they can't. */
#include "../ground/message.h"
#include "mapping.h"

#include <stdio.h>

struct client_session *client_pinned_session(void)
{
	struct client_session *session = farbus_client.sessions;

	return client_alone() && session->transport.shm &&
			       client_session_has(session, WIRE_OP_PINNED_OFFER) &&
			       client_session_has(session, WIRE_OP_COPY_PINNED)
		       ? session
		       : NULL;
}

/* Would all devices use memory that the server maps? */
static bool devices_map(void)
{
	static const CUdevice_attribute needed[] = {
		CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
		CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
		CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
	};

	for (int i = 0; i < farbus_client.device_count; i++)
		for (size_t j = 0; j < sizeof(needed) / sizeof(needed[0]); j++)
			if (!farbus_client.devices[i].snapshot.attributes[needed[j]])
				return false;
	return true;
}

bool client_pinned_maps(void)
{
	const struct client_session *session = client_pinned_session();

	return session && client_session_has(session, WIRE_OP_PINNED_MAP) && devices_map();
}

const struct client_session *client_pinned_unmapped(void)
{
	const struct client_session *session = client_pinned_session();

	return session && !client_session_has(session, WIRE_OP_PINNED_MAP) && devices_map() ? session : NULL;
}

static _Atomic bool pinned_given;
static _Atomic bool allocated_alone;	/* where the server maps, some of what CUDA allocated is not mapped */

struct client_hint client_mapping_hint(void)
{
	const struct client_session *older = client_pinned_unmapped();
	struct client_hint hint;

	switch (farbus_client.mapping) {
	case MAPPING_SHARED:
		if (atomic_load(&allocated_alone))
			return (struct client_hint){
				"program and server could not both have it: by a limit of either (ulimit -n, -f, "
				"-v), beyond 16,384 pieces or half of this machine's memory, or where no address "
				"is free in both"
			};
		return (struct client_hint){
			"memory that a program registers stays its own, but files in memory (shm_open, "
			"memfd_create) that it has mapped shared: let CUDA allocate it"
		};
	case MAPPING_MANAGED:
		return (struct client_hint){
			"memory that a program registers stays its own with FARBUS_MAPPED_MEMORY=managed: "
			"let CUDA allocate it"
		};
	default:
		if (!client_alone())
			return (struct client_hint){
				"with GPUs of one node (without --gpu-span) FARBUS_MAPPED_MEMORY=managed lets "
				"kernels use it, where the program waits for them before it reads"
			};
		if (!older)
			return (struct client_hint){
				"FARBUS_MAPPED_MEMORY=managed lets kernels use what CUDA allocates "
				"(cudaHostAlloc, not cudaHostRegister), where the program waits for them before "
				"it reads"
			};
		snprintf(hint.text, sizeof(hint.text), "the server at %s speaks remoting protocol %u.%u, this shim %u.%u: "
			 "with the same version of farbus on both sides kernels use it", older->peer, older->major,
			 older->minor, WIRE_PROTOCOL_MAJOR, WIRE_PROTOCOL_MINOR);
		return hint;
	}
}

void client_pinned_alone(void)
{
	atomic_store(&allocated_alone, farbus_client.mapping == MAPPING_SHARED);
}

/* CUDA gives memory that was asked to be mapped also where none can be, and fails later. */
void client_pinned_note(unsigned flags)
{
	static _Atomic bool said;

	atomic_store(&pinned_given, true);
	_Static_assert(CU_MEMHOSTALLOC_DEVICEMAP == CU_MEMHOSTREGISTER_DEVICEMAP, "one flag for both");
	if (flags & CU_MEMHOSTALLOC_DEVICEMAP && !atomic_exchange(&said, true))
		client_message("pinned memory is not mapped: %s%s",
			       farbus_client.mapping == MAPPING_NONE
				       ? "kernels that read or write this machine's memory, as NCCL's do, can't work on a "
					 "remote GPU; copy instead, or use gloo for NCCL; "
				       : "",
			       client_mapping_hint().text);
}

/* Where addresses are unified all pinned memory is mapped without being asked (CatBoost goes by that), and a kernel
 * that is given its address ends with an illegal address, which says nothing of why. */
void client_pinned_after_illegal_address(void)
{
	static _Atomic bool said;

	if (atomic_load(&pinned_given) && !atomic_exchange(&said, true))
		client_message("a kernel used an address that is not the GPU's (CUDA error 700): if that was pinned "
			       "memory of this machine, a remote GPU can't read or write it; copy it; %s",
			       client_mapping_hint().text);
}
