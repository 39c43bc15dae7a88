"""What travels between client and server: one operation per opcode, for ever.

A field is ``type name`` or ``type name[count]``.  Types: ``u32 i32 f32 u64``, and the
kinds of handles (``context stream event library function``), which travel as u64
and are resolved, typed and generation-checked, by the server.  A stream may be one
of CUDA's two special values.

``driver`` is the driver call that serves the operation: arguments are request
fields, ``&name`` a reply field, or literals.  Operations without one are written by
hand in native/server.
"""

from __future__ import annotations

import re
from typing import Final

from farbus.remoting.spec.model import Answer, Field, Operation, Scalar

#: Kinds of handles, with the driver's type.
HANDLE_KINDS: Final = {
    "context": "CUcontext",
    "stream": "CUstream",
    "event": "CUevent",
    "library": "CUlibrary",
    "function": "CUfunction",
}

#: Most bytes that one frame may carry behind its fields: large enough that the
#: cost of a frame vanishes, small enough that other threads' frames slip between.
BULK_BYTES: Final = 1 << 20

_SCALARS: Final = {"u32": Scalar.U32, "i32": Scalar.I32, "f32": Scalar.F32, "u64": Scalar.U64}


def _fields(text: str) -> tuple[Field, ...]:
    fields = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        found = re.fullmatch(r"(\w+) (\w+)(?:\[(\d+)\])?", part)
        if not found:
            raise ValueError(f"field {part!r}: expected 'type name' or 'type name[count]'")
        kind, name, count = found[1], found[2], int(found[3] or 1)
        handle = kind if kind in HANDLE_KINDS else ""
        fields.append(Field(name, Scalar.U64 if handle else _SCALARS[kind], count, handle))
    return tuple(fields)


def _op(
    opcode: int,
    name: str,
    answer: Answer,
    request: str,
    doc: str,
    *,
    reply: str = "",
    driver: str = "",
    blocking: bool = False,
    context: bool = True,
    request_tail: int = 0,
    reply_tail: int = 0,
) -> Operation:
    return Operation(
        opcode=opcode,
        name=name,
        answer=answer,
        request=_fields(request),
        reply=_fields(reply),
        driver=driver,
        blocking=blocking,
        context=context,
        request_tail=request_tail,
        reply_tail=reply_tail,
        doc=doc,
    )


_POSTED = Answer.POSTED
_CALLED = Answer.CALLED

OPERATIONS: Final = (
    _op(0x0001, "lane_end", _POSTED, "", "The client's thread has ended.", context=False),
    _op(
        0x0002,
        "blob_part",
        _POSTED,
        "u64 blob, u64 total, u64 offset",
        "A piece of something too large for one frame, in order.",
        context=False,
        request_tail=BULK_BYTES,
    ),
    _op(
        0x0003,
        "host_done",
        _POSTED,
        "u64 token",
        "The host function that the server asked for has returned.",
        context=False,
    ),
    _op(
        0x0004,
        "pull_data",
        _POSTED,
        "u64 token, u64 offset",
        "Bytes of pinned memory that the server asked for.",
        context=False,
        request_tail=BULK_BYTES,
    ),
    # contexts
    _op(
        0x0010,
        "primary_retain",
        _CALLED,
        "u32 device, u32 reserved, u64 context",
        "Activate a device's primary context under the client's handle.",
        context=False,
    ),
    _op(0x0011, "primary_release", _CALLED, "u32 device", "Give it back.", context=False, blocking=True),
    _op(0x0012, "primary_reset", _CALLED, "u32 device", "Destroy it with all it holds.", context=False, blocking=True),
    _op(
        0x0013,
        "primary_set_flags",
        _CALLED,
        "u32 device, u32 flags",
        "Its scheduling flags.",
        driver="cuDevicePrimaryCtxSetFlags_v2(device, flags)",
        context=False,
    ),
    _op(
        0x0014,
        "context_create",
        _CALLED,
        "u32 device, u32 flags, u64 context",
        "Make a context under the client's handle.",
        context=False,
    ),
    _op(
        0x0015,
        "context_destroy",
        _CALLED,
        "context context",
        "Destroy a context with all it holds.",
        context=False,
        blocking=True,
    ),
    _op(
        0x0016,
        "context_synchronize",
        _CALLED,
        "",
        "Wait for all work of the context.",
        driver="cuCtxSynchronize()",
        blocking=True,
    ),
    _op(
        0x0017,
        "context_get_limit",
        _CALLED,
        "u32 limit",
        "Read a limit.",
        reply="u64 value",
        driver="cuCtxGetLimit(&value, limit)",
    ),
    _op(
        0x0018,
        "context_set_limit",
        _CALLED,
        "u32 limit, u32 reserved, u64 value",
        "Set a limit.",
        driver="cuCtxSetLimit(limit, value)",
    ),
    _op(
        0x0019,
        "context_stream_priorities",
        _CALLED,
        "",
        "The range of stream priorities.",
        reply="i32 least, i32 greatest",
        driver="cuCtxGetStreamPriorityRange(&least, &greatest)",
    ),
    _op(
        0x001A,
        "green_enter",
        _CALLED,
        "u64 green, u32 device, u32 reserved, u64 context",
        "Let a context of the client's name stand for a green context.",
        context=False,
    ),
    _op(
        0x001B,
        "green_destroy",
        _CALLED,
        "u64 green, u64 context",
        "Destroy a green context, and what stood for it (0: nothing did).",
        context=False,
        blocking=True,
    ),
    _op(
        0x001C,
        "device_layout",
        _CALLED,
        "",
        "Where the context's device has its multiprocessors, as a private table of the driver's tells it.  The tail: "
        "a byte for the GPC of each pair of them (TPC), then as many for the pairs' numbers in their GPCs.",
        reply_tail=4096,
    ),
    # memory
    _op(
        0x0020,
        "memory_info",
        _CALLED,
        "",
        "Free and total bytes of the device.",
        reply="u64 free, u64 total",
        driver="cuMemGetInfo_v2(&free, &total)",
    ),
    _op(
        0x0021,
        "memory_alloc",
        _CALLED,
        "u64 bytes",
        "Allocate device memory.",
        reply="u64 address",
        driver="cuMemAlloc_v2(&address, bytes)",
    ),
    _op(
        0x0022,
        "memory_alloc_pitch",
        _CALLED,
        "u64 width, u64 height, u32 element",
        "Allocate device memory with padded rows.",
        reply="u64 address, u64 pitch",
        driver="cuMemAllocPitch_v2(&address, &pitch, width, height, element)",
    ),
    _op(
        0x0023,
        "memory_free",
        _CALLED,
        "u64 address",
        "Free device memory.",
        driver="cuMemFree_v2(address)",
        blocking=True,
    ),
    _op(
        0x0024,
        "memory_alloc_async",
        _CALLED,
        "u64 bytes, stream stream",
        "Allocate from the default pool in stream order.",
        reply="u64 address",
        driver="cuMemAllocAsync(&address, bytes, stream)",
    ),
    _op(
        0x0025,
        "memory_free_async",
        _POSTED,
        "u64 address, stream stream",
        "Free in stream order.",
        driver="cuMemFreeAsync(address, stream)",
    ),
    _op(
        0x0026,
        "memory_free_graph",
        _CALLED,
        "u64 address, stream stream",
        "Free what a graph has allocated, or free it in a captured stream.",
        driver="cuMemFreeAsync(address, stream)",
    ),
    # pinned memory that client and server share
    _op(
        0x0027,
        "pinned_offer",
        _POSTED,
        "u64 pinned, u64 bytes",
        "The memory whose descriptor came before this, under the client's handle; what may not be shared is dropped.",
        context=False,
    ),
    _op(0x0028, "pinned_register", _CALLED, "u64 pinned", "Pin it for the driver.", blocking=True),
    _op(
        0x0029,
        "pinned_release",
        _CALLED,
        "u64 pinned",
        "Wait for what uses it, and let go of it.",
        context=False,
        blocking=True,
    ),
    # copies and fills
    _op(
        0x0030,
        "copy_to_device",
        _POSTED,
        "u64 device, stream stream",
        "Bytes for device memory.",
        request_tail=BULK_BYTES,
    ),
    _op(
        0x0031,
        "copy_to_device_2d",
        _POSTED,
        "u64 device, u64 pitch, u64 width, u64 height, stream stream",
        "Packed rows for device memory.",
        request_tail=BULK_BYTES,
    ),
    _op(
        0x0032,
        "copy_to_host",
        _CALLED,
        "u64 device, u64 pitch, u64 width, u64 height, stream stream",
        "Read device memory; the rows arrive packed, as data events, before the reply.",
        blocking=True,
    ),
    _op(
        0x0033,
        "copy_to_host_async",
        _POSTED,
        "u64 device, u64 pitch, u64 width, u64 height, stream stream",
        "The same in stream order; the data events arrive before what follows in the stream is seen to complete.",
    ),
    _op(
        0x0034,
        "copy_on_device",
        _POSTED,
        "u64 target, u64 source, u64 bytes, stream stream",
        "Copy within a device.",
        driver="cuMemcpyDtoDAsync_v2(target, source, bytes, stream)",
    ),
    _op(
        0x0035,
        "copy_on_device_2d",
        _POSTED,
        "u64 target, u64 target_pitch, u64 source, u64 source_pitch, u64 width, u64 height, stream stream",
        "Copy rows within a device.",
    ),
    _op(
        0x0036,
        "copy_pinned_to_device",
        _POSTED,
        "u64 device, u64 pitch, u64 width, u64 height, u64 token, stream stream",
        "Copy from pinned memory of the client, which is asked for its bytes when the stream reaches this point.",
    ),
    _op(
        0x0037,
        "fill",
        _POSTED,
        "u64 device, u64 pitch, u64 width, u64 height, u32 element, u32 value, stream stream",
        "Set width elements in each of height rows; pitch 0: one row.",
    ),
    _op(
        0x0038,
        "capture_copy_to_device",
        _CALLED,
        "u64 device, u64 pitch, u64 width, u64 height, u64 token, stream stream",
        "Copy from memory of the client in a captured stream: every replay asks for its bytes again.",
    ),
    _op(
        0x0039,
        "capture_copy_to_host",
        _POSTED,
        "u64 device, u64 pitch, u64 width, u64 height, stream stream",
        "Copy to memory of the client in a captured stream: every replay sends its bytes.",
    ),
    _op(
        0x003A,
        "array_write",
        _CALLED,
        "u64 array, u64 x, u64 y, u64 z, u64 width, u64 height, stream stream",
        "Packed rows for an array.",
        request_tail=BULK_BYTES,
    ),
    _op(
        0x003B,
        "array_read",
        _CALLED,
        "u64 array, u64 x, u64 y, u64 z, u64 width, u64 height, stream stream",
        "Rows of an array, packed, as data events before the reply.",
        blocking=True,
    ),
    _op(
        0x003C,
        "array_copy",
        _CALLED,
        "u64 source, u64 source_is_array, u64 source_pitch, u64 source_x, u64 source_y, u64 source_z,"
        " u64 target, u64 target_is_array, u64 target_pitch, u64 target_x, u64 target_y, u64 target_z,"
        " u64 width, u64 height, u64 depth, stream stream",
        "Copy between arrays, or between one and memory of the device, whose pitch's upper half is the slice's height.",
    ),
    _op(
        0x003D,
        "copy_pinned",
        _POSTED,
        "u64 pinned, u64 offset, u64 host_pitch, u64 device, u64 pitch, u64 width, u64 height, "
        "u32 to_device, u32 waited, stream stream",
        "Copy rows between a device and shared pinned memory, in stream order; no bytes travel.  waited: "
        "the sender waits for it at once.",
    ),
    # streams and events
    _op(
        0x0040,
        "stream_create",
        _POSTED,
        "u64 stream, u32 flags, i32 priority",
        "Make a stream under the client's handle.",
    ),
    _op(0x0041, "stream_destroy", _POSTED, "stream stream", "Destroy a stream."),
    _op(0x0042, "stream_query", _CALLED, "stream stream", "Has the stream finished?", driver="cuStreamQuery(stream)"),
    _op(
        0x0043,
        "stream_synchronize",
        _CALLED,
        "stream stream",
        "Wait for a stream.",
        driver="cuStreamSynchronize(stream)",
        blocking=True,
    ),
    _op(
        0x0044,
        "stream_wait_event",
        _POSTED,
        "stream stream, event event, u32 flags",
        "Let a stream wait for an event.",
        driver="cuStreamWaitEvent(stream, event, flags)",
    ),
    _op(
        0x0045,
        "stream_host_function",
        _POSTED,
        "u64 token, stream stream",
        "When the stream gets here, ask the client to run a host function and wait for it.",
    ),
    _op(
        0x0046,
        "capture_host_function",
        _CALLED,
        "u64 token, stream stream, u64 function, u64 argument",
        "A host function in a captured stream: every replay asks for it.",
    ),
    _op(
        0x0047,
        "capture_begin",
        _CALLED,
        "stream stream, u32 mode",
        "Begin to capture a stream.",
    ),
    _op(
        0x0049,
        "capture_end",
        _CALLED,
        "stream stream",
        "End a capture.",
        reply="u64 graph",
    ),
    _op(
        0x004A,
        "capture_begin_to_graph",
        _CALLED,
        "stream stream, u64 graph, u32 mode, u32 count, u32 has_edges",
        "Begin to capture into a graph, behind the nodes in the tail (with their edges' data).",
        request_tail=128 << 10,
    ),
    _op(
        0x004B,
        "capture_info",
        _CALLED,
        "stream stream",
        "Is the stream captured, into which graph, behind which nodes (the tail: their names, then edges' data)?",
        reply="u32 status, u32 count, u64 id, u64 graph, u32 has_edges",
        reply_tail=BULK_BYTES,
    ),
    _op(
        0x004C,
        "stream_callback",
        _POSTED,
        "u64 token, stream stream",
        "The same as stream_host_function for a callback, which is told of an error that came before.",
    ),
    _op(0x0048, "capture_mode", _POSTED, "u32 mode", "How far captures forbid this thread's calls.", context=False),
    _op(0x0050, "event_create", _POSTED, "u64 event, u32 flags", "Make an event under the client's handle."),
    _op(0x0051, "event_destroy", _POSTED, "event event", "Destroy an event.", context=False),
    _op(0x0052, "event_record", _POSTED, "event event, stream stream, u32 flags", "Record an event."),
    _op(
        0x0053,
        "event_query",
        _CALLED,
        "event event",
        "Has the event happened?",
        driver="cuEventQuery(event)",
        context=False,
    ),
    _op(
        0x0054,
        "event_synchronize",
        _CALLED,
        "event event",
        "Wait for an event.",
        driver="cuEventSynchronize(event)",
        blocking=True,
        context=False,
    ),
    _op(
        0x0055,
        "event_elapsed_time",
        _CALLED,
        "event start, event end",
        "Milliseconds between two events.",
        reply="f32 milliseconds",
        driver="cuEventElapsedTime(&milliseconds, start, end)",
        context=False,
    ),
    # code
    _op(
        0x0060,
        "library_load",
        _CALLED,
        "u64 library, u64 blob, u64 blob_bytes, u32 is_module, u32 jit_count, u32 option_count",
        "Load an image that was sent as a blob; the reply describes every kernel.",
        reply="u32 kernel_count, u32 enumerated",
        blocking=True,
        context=False,
        request_tail=4096,
        reply_tail=BULK_BYTES,
    ),
    _op(0x0061, "library_unload", _CALLED, "library library", "Unload it.", blocking=True, context=False),
    _op(
        0x0062,
        "library_global",
        _CALLED,
        "library library",
        "A variable by name (tail).",
        reply="u64 address, u64 bytes",
        request_tail=4096,
    ),
    _op(
        0x0063,
        "library_function",
        _CALLED,
        "library library",
        "A kernel by name (tail); the reply describes it.",
        reply="u32 kernel_count, u32 reserved",
        context=False,
        request_tail=4096,
        reply_tail=BULK_BYTES,
    ),
    _op(
        0x0064,
        "function_set_attribute",
        _CALLED,
        "function function, i32 attribute, i32 value",
        "Set an attribute of a kernel on the current device.",
    ),
    _op(
        0x0065,
        "function_set_cache",
        _POSTED,
        "function function, u32 preference",
        "The preferred split of cache and shared memory.",
    ),
    _op(
        0x0066,
        "library_kernels",
        _CALLED,
        "library library, u32 first",
        "More of the kernels' descriptions, when one reply could not hold all.",
        reply="u32 kernel_count, u32 reserved",
        reply_tail=BULK_BYTES,
        context=False,
    ),
    _op(
        0x0067,
        "library_variable",
        _CALLED,
        "library library",
        "A variable by name (tail), and whether it is managed memory.",
        reply="u64 address, u64 bytes, u32 managed, u32 reserved",
        request_tail=4096,
    ),
    _op(
        0x0069,
        "image_load",
        _CALLED,
        "u64 library, u64 blob, u64 bytes, u64 digest[4], u32 device, u32 is_module, u32 jit_count,"
        " u32 info_bytes, u32 error_bytes",
        "library_load for an image that was sent as a blob, or (blob 0) is at the server under its digest, where it"
        " is kept if there is one.  Attributes are those on `device`; the tail begins with what the compiler said.",
        reply="i32 result, u32 is_absent, u32 kernel_count, u32 enumerated, u32 info_bytes, u32 error_bytes",
        blocking=True,
        context=False,
        request_tail=4096,
        reply_tail=BULK_BYTES,
    ),
    _op(
        0x0068,
        "library_attributes",
        _CALLED,
        "library library, u32 device, u32 first",
        "The attributes of a library's kernels on a device, as many as one reply holds.",
        reply="u32 kernel_count, u32 reserved",
        context=False,
        reply_tail=BULK_BYTES,
    ),
    # launches
    _op(
        0x0070,
        "launch",
        _POSTED,
        "function function, stream stream, u32 grid[3], u32 block[3], u32 shared_bytes,"
        " u32 attribute_count, u32 parameter_bytes",
        "Launch a kernel; the tail holds the attributes, then the parameter buffer.",
        request_tail=64 << 10,
    ),
    _op(
        0x0071,
        "launch_checked",
        _CALLED,
        "function function, stream stream, u32 grid[3], u32 block[3], u32 shared_bytes,"
        " u32 attribute_count, u32 parameter_bytes",
        "The same for launches whose limits only the driver knows (cooperative, clusters).",
        request_tail=64 << 10,
    ),
    _op(
        0x0078,
        "occupancy_blocks",
        _CALLED,
        "function function, i32 block_size, u32 flags, u64 dynamic_shared",
        "Blocks of a kernel that fit on a multiprocessor.",
        reply="i32 blocks",
        driver="cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"
        "(&blocks, function, block_size, dynamic_shared, flags)",
    ),
    # calls as they are: native/generated/params.h
    _op(
        0x0080,
        "call",
        _CALLED,
        "u32 function, u32 reserved",
        "A call of the driver by its entry's number; the tail holds its arguments.",
        reply="i32 result, u32 reserved",
        context=False,
        request_tail=128 << 10,
        reply_tail=BULK_BYTES,
    ),
    _op(
        0x0081,
        "call_waiting",
        _CALLED,
        "u32 function, u32 reserved",
        "The same, where the driver may wait for the device.",
        reply="i32 result, u32 reserved",
        context=False,
        blocking=True,
        request_tail=128 << 10,
        reply_tail=BULK_BYTES,
    ),
    _op(
        0x0082,
        "user_object_create",
        _CALLED,
        "u64 token, u32 count, u32 flags",
        "An object whose end the client's host function of this token sees.",
        reply="u64 object",
        context=False,
    ),
    _op(
        0x0084,
        "link_create",
        _CALLED,
        "u32 jit_count, u32 reserved",
        "Begin to link; the tail holds the options.",
        reply="u64 link",
        request_tail=4096,
    ),
    _op(
        0x0085,
        "link_add",
        _CALLED,
        "u64 link, u32 type, u32 jit_count, u64 blob, u64 blob_bytes",
        "Add an input that was sent as a blob; the tail holds the options, then its name.",
        blocking=True,
        request_tail=8192,
    ),
    _op(
        0x008B,
        "link_log",
        _CALLED,
        "u64 link",
        "What the last link_add or link_complete had to say; link_create has the sizes of the logs among its options.",
        reply="u32 info_bytes, u32 error_bytes",
        context=False,
        reply_tail=BULK_BYTES,
    ),
    _op(
        0x0087,
        "graph_dot",
        _CALLED,
        "u64 graph, u32 flags",
        "A graph as text for graphviz, as far as one frame holds it.",
        context=False,
        reply_tail=BULK_BYTES,
    ),
    _op(
        0x0088,
        "event_open",
        _CALLED,
        "u64 event, u64 handle[8]",
        "Open another process's event under the client's handle.",
    ),
    _op(
        0x0089,
        "event_share",
        _CALLED,
        "event event",
        "The handle by which other processes open an event.",
        reply="u64 handle[8]",
    ),
    _op(
        0x008A,
        "memory_open",
        _CALLED,
        "u64 handle[8], u32 flags",
        "Open another process's memory.",
        reply="u64 address, u64 bytes",
    ),
    _op(
        0x0086,
        "link_complete",
        _CALLED,
        "u64 link, u64 offset",
        "Link; the reply's tail is the image from that offset on.",
        reply="u64 total",
        blocking=True,
        reply_tail=BULK_BYTES,
    ),
    _op(
        0x0079,
        "occupancy_shared",
        _CALLED,
        "function function, i32 blocks, i32 block_size",
        "Dynamic shared memory left to a block.",
        reply="u64 bytes",
        driver="cuOccupancyAvailableDynamicSMemPerBlock(&bytes, function, blocks, block_size)",
    ),
)

#: Events: what the server sends without being asked for it in the same breath.
#: Their fields; the tail of each is limited by BULK_BYTES.
EVENTS: Final = (
    (
        0x0100,
        "data",
        _fields("u64 sequence, u64 offset"),
        True,
        "Bytes for the copy that was requested under this sequence number.",
    ),
    (
        0x0101,
        "host_call",
        _fields("u64 token, i32 status"),
        False,
        "Run the host function of this token, then say host_done.",
    ),
    (0x0102, "pull", _fields("u64 token"), False, "Send the bytes of the pinned copy of this token."),
    (
        0x0103,
        "failure",
        _fields("context context, u64 sequence, i32 status, u32 opcode"),
        False,
        "A posted operation has failed.",
    ),
    (0x0104, "text", _fields("u32 descriptor"), True, "What kernels printed."),
)
