"""DeepSpeed behind the strategies `deepspeed_zero1` to `deepspeed_zero3`."""
