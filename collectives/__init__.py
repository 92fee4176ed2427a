"""What crosses a wire while a chip computes: links, and the arms of the matmuls that gather over them.

One process owns the shards of all ranks, and a link moves them to one of those ranks at the pace of a wire that is
chosen. Read `collectives/transfers.py` for the protocol, then `collectives/all_gather_matmul.py` for the arms, and
`collectives/on_device.py` for those that are one kernel, which waits on the device.
"""
