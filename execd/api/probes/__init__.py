"""The probes of kubelet."""
