"""Why a job is stalled: which rank ended first, which rank is late, which waits are circular."""
