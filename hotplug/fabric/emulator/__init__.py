"""A PCIe chassis without hardware: both dialects over one state, measured latencies, injected faults, QEMU guests."""
