"""Drives that are composed and shared: the policies of "Workload-aware placement strategies to leverage disaggregated
resources in the datacenter" (below: the paper), as pure code for the scheduler and the simulator."""
