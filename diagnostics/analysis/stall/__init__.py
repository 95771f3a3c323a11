"""Why a job stands still: who ended first, who is late, which waits are circular, and what no rank is to blame for."""
