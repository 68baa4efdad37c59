"""GDCN: Towards Deeper, Lighter and Interpretable Cross Network, Wang et al., CIKM 2023.

Cross layers whose products pass a gate:

    x_(l+1) = x_0 * (W_l x_l + b_l) * sigmoid(G_l x_l) + x_l
    parallel   logit = <w, [x_L, relu layers of x_0]>
    stacked    logit = <w, relu layers of x_L>
"""

from shoal.models.clicks.dcnv2 import DCNV2


class GDCN(DCNV2):
    """DCNV2 with a gate on every cross."""

    gated = True

    class Options(DCNV2.Options):
        cross_layers: int = 3
