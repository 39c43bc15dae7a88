"""Policies: what an arc costs, who comes first, and the simple schedulers to compare with."""
