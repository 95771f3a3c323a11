"""Why a job stands still: which rank ended first, which is late, which waits are circular."""
