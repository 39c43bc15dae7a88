"""What an agent measures: collectors, each on its own; what they found goes into heartbeats and to Prometheus."""
