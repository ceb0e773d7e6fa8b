"""What people and Prometheus see of a running server: metrics, the live feed, decisions in words, the operator's calls.

May import contracts, tenancy (who may look) and the server's state.
"""
