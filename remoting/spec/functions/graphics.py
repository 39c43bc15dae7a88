"""Interoperability with OpenGL, EGL and VDPAU."""

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions.forms import missing
from farbus.remoting.spec.functions.reasons import GRAPHICS, NARROW

ENTRIES: Final = (
    missing(103, "cuEGLStreamConsumerAcquireFrame", 7000, "cuEGLStreamConsumerAcquireFrame", GRAPHICS),
    missing(104, "cuEGLStreamConsumerConnect", 7000, "cuEGLStreamConsumerConnect", GRAPHICS),
    missing(105, "cuEGLStreamConsumerConnectWithFlags", 8000, "cuEGLStreamConsumerConnectWithFlags", GRAPHICS),
    missing(106, "cuEGLStreamConsumerDisconnect", 7000, "cuEGLStreamConsumerDisconnect", GRAPHICS),
    missing(107, "cuEGLStreamConsumerReleaseFrame", 7000, "cuEGLStreamConsumerReleaseFrame", GRAPHICS),
    missing(108, "cuEGLStreamProducerConnect", 7000, "cuEGLStreamProducerConnect", GRAPHICS),
    missing(109, "cuEGLStreamProducerDisconnect", 7000, "cuEGLStreamProducerDisconnect", GRAPHICS),
    missing(110, "cuEGLStreamProducerPresentFrame", 7000, "cuEGLStreamProducerPresentFrame", GRAPHICS),
    missing(111, "cuEGLStreamProducerReturnFrame", 7000, "cuEGLStreamProducerReturnFrame", GRAPHICS),
    missing(136, "cuGLCtxCreate", 3020, "cuGLCtxCreate_v2", GRAPHICS),
    missing(137, "cuGLGetDevices", 4010, "cuGLGetDevices_v2", GRAPHICS),
    missing(138, "cuGLInit", 2000, "cuGLInit", GRAPHICS),
    missing(139, "cuGLMapBufferObject", 3020, "cuGLMapBufferObject_v2", GRAPHICS, per_thread=(7000, "_ptds")),
    missing(140, "cuGLMapBufferObjectAsync", 3020, "cuGLMapBufferObjectAsync_v2", GRAPHICS, per_thread=(7000, "_ptsz")),
    missing(141, "cuGLRegisterBufferObject", 2000, "cuGLRegisterBufferObject", GRAPHICS),
    missing(142, "cuGLSetBufferObjectMapFlags", 2030, "cuGLSetBufferObjectMapFlags", GRAPHICS),
    missing(143, "cuGLUnmapBufferObject", 2000, "cuGLUnmapBufferObject", GRAPHICS),
    missing(144, "cuGLUnmapBufferObjectAsync", 2030, "cuGLUnmapBufferObjectAsync", GRAPHICS),
    missing(145, "cuGLUnregisterBufferObject", 2000, "cuGLUnregisterBufferObject", GRAPHICS),
    missing(246, "cuGraphicsEGLRegisterImage", 7000, "cuGraphicsEGLRegisterImage", GRAPHICS),
    missing(247, "cuGraphicsGLRegisterBuffer", 3000, "cuGraphicsGLRegisterBuffer", GRAPHICS),
    missing(248, "cuGraphicsGLRegisterImage", 3000, "cuGraphicsGLRegisterImage", GRAPHICS),
    missing(249, "cuGraphicsMapResources", 3000, "cuGraphicsMapResources", GRAPHICS, per_thread=(7000, "_ptsz")),
    missing(250, "cuGraphicsResourceGetMappedEglFrame", 7000, "cuGraphicsResourceGetMappedEglFrame", GRAPHICS),
    missing(
        251, "cuGraphicsResourceGetMappedMipmappedArray", 5000, "cuGraphicsResourceGetMappedMipmappedArray", GRAPHICS
    ),
    missing(252, "cuGraphicsResourceGetMappedPointer", 3000, "cuGraphicsResourceGetMappedPointer", NARROW),
    missing(253, "cuGraphicsResourceGetMappedPointer", 3020, "cuGraphicsResourceGetMappedPointer_v2", GRAPHICS),
    missing(254, "cuGraphicsResourceSetMapFlags", 3000, "cuGraphicsResourceSetMapFlags", GRAPHICS),
    missing(255, "cuGraphicsResourceSetMapFlags", 6050, "cuGraphicsResourceSetMapFlags_v2", GRAPHICS),
    missing(256, "cuGraphicsSubResourceGetMappedArray", 3000, "cuGraphicsSubResourceGetMappedArray", GRAPHICS),
    missing(257, "cuGraphicsUnmapResources", 3000, "cuGraphicsUnmapResources", GRAPHICS, per_thread=(7000, "_ptsz")),
    missing(258, "cuGraphicsUnregisterResource", 3000, "cuGraphicsUnregisterResource", GRAPHICS),
    missing(259, "cuGraphicsVDPAURegisterOutputSurface", 3010, "cuGraphicsVDPAURegisterOutputSurface", GRAPHICS),
    missing(260, "cuGraphicsVDPAURegisterVideoSurface", 3010, "cuGraphicsVDPAURegisterVideoSurface", GRAPHICS),
    missing(583, "cuVDPAUCtxCreate", 3020, "cuVDPAUCtxCreate_v2", GRAPHICS),
    missing(584, "cuVDPAUGetDevice", 3010, "cuVDPAUGetDevice", GRAPHICS),
)
