"""Direct transfers between the GPUs of a node do not work: the IOMMU or ACS breaks them, or the driver refuses them."""

from diagnostics.causes.env._failures import failure_cause

CAUSE = failure_cause(__file__)
