"""Direct transfers between the GPUs of a node do not work: the IOMMU or ACS breaks them, or the driver refuses them."""

from diagnostics.causes.env._failures import named_cause

CAUSE = named_cause(__file__)
