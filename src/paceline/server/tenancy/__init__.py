"""Who asks, what they may, and what they used: keys, tenants, classes of service, rates, the usage ledger.

Deciders take the time as an argument. May import contracts and the server's errors and state.
"""
