"""The all-gather matmul of the layer `up`: every rank's chunk of the activations is gathered while it is multiplied.

Tensor-parallel degrees run from one side of the balance to the other. Where neither these nor ranks or links are
chosen, one degree above the balance is measured over further links and with further ranks too, some degrees with as
many ranks, and on a GPU three over PCIe.
"""

from dataclasses import dataclass

from roofline.operations.gathering import Gathering, declare


@dataclass(frozen=True)
class AllGatherMatmul(Gathering):
    """x[m, k] is sharded over its columns, the summed dimension: every tile of `out` needs every rank's chunk.

    >>> case = AllGatherMatmul("xxl", "up", tp=8, m=8192, dtype="bf16", ranks=8, wire="balance2750")
    >>> case.id
    'all_gather_matmul-xxl-up-p8-tp8-m8192-bf16-balance2750'
    >>> case.work.wire_intensity == case.n * 8 / 7  # m and k cancel
    True
    """

    op, gathered, sharded = "all_gather_matmul", ("m", "k"), "k"


OPERATION = declare(
    AllGatherMatmul,
    "all_gather_matmul-xxl-up-p8-tp8-m8192-bf16-balance2750-row_block",
    peer_wire="symmetric",
)
