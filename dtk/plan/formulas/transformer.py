"""dtk's own transformers as operations on a tape: follows the code of `dtk.models` line by line."""

from dtk.config.schema import EncoderConfig, GPTConfig, LlamaConfig
from dtk.plan.formulas.activations import FLOAT_BYTES, Layers
from dtk.plan.formulas.tape import Value, drop


class Model(Layers):
    """Runs the parts of a model on a tape."""

    def embed(self) -> Value:
        """Token ids -> the residual stream."""
        whole = self.tokens * self.shape.config.width * self.stream_bytes
        size = self.stream_size
        table = [self.gradient("token_embedding.weight")]
        # Cut, the ids in the rank's part of the table are kept, and which are not, whose rows become zeros.
        x = self.tape.operation(whole, [], parameters=table, kept_bytes=8 * self.tokens if self.tp > 1 else 0)
        if self.tp > 1:
            embedded, x = x, self.tape.operation(whole, [(x, whole)], kept_bytes=self.tokens)
            embedded.drop()
        x = self.leave(x)
        if isinstance(self.shape.config, LlamaConfig):
            return x
        position = self.gradient("position_embedding.weight")
        # The gradient is summed over the batch, then padded with zeros to the whole table.
        rows = size // self.batch
        y = self.tape.operation(size, [(x, 0)], parameters=[position], backward_workspace_bytes=rows)
        x.drop()
        return self.dropout(y, self.shape.config.dropout)

    def block(self, x: Value, prefix: str) -> Value:
        """One block; the caller still holds `x`."""
        if isinstance(config := self.shape.config, LlamaConfig):
            return self._llama_block(x, prefix, config)
        return self._gpt_block(x, prefix, config)

    def head(self, x: Value) -> Value:
        """Apply the final norm and the output projection, return the logits and release `x`."""
        config = self.shape.config
        normed = self.norm(x, "final_norm")
        x.drop()
        if isinstance(config, EncoderConfig):
            # Mean over the tokens: the weighted copy is summed at once, and its backward makes one again.
            if self.tp > 1 and self.sequence_parallel:
                part, normed = normed, self.join(normed, self.batch > 1)
                part.drop()
            pooled = self.batch * config.width * self.stream_bytes
            weighted = self.tokens * config.width * self.stream_bytes
            pool = self.tape.operation(pooled, [(normed, weighted)], workspace_bytes=weighted)
            normed.drop()
            logits = self.linear(pool, "head", config.classes, self.batch, "logits")
            pool.drop()
            return logits
        name = "head" if "head.weight" in self.shapes else "token_embedding"
        whole = self.enter(normed)
        logits = self.linear(whole, name, config.vocab_size // self.tp, self.tokens, "logits")
        drop(whole, normed)
        return logits

    def _gpt_block(self, x: Value, prefix: str, config: GPTConfig | EncoderConfig) -> Value:
        wide = self.tokens * config.width * self.compute_bytes // self.tp
        normed = self.norm(x, prefix + "attention_norm")
        whole = self.enter(normed)
        qkv = self.linear(whole, prefix + "attention.qkv", 3 * config.width // self.tp, self.tokens)
        whole.drop()
        parts = self.tape.operation(0, [(qkv, 3 * wide)])
        y = self.attention((parts,), (3 * wide,), config.dropout)
        out = self.dropout(self.row(y, prefix + "attention.projection"), config.dropout)
        drop(qkv, parts, y, normed)
        middle = self.add(x, out)
        normed = self.norm(middle, prefix + "mlp_norm")
        whole = self.enter(normed)
        up = self.linear(whole, prefix + "mlp.up", 4 * config.width // self.tp, self.tokens)
        whole.drop()
        active = self.tape.operation(4 * wide, [(up, 4 * wide)], saves=[up])
        up.drop()
        down = self.row(active, prefix + "mlp.down")
        active.drop()
        out = self.dropout(down, config.dropout)
        normed.drop()
        result = self.add(middle, out)
        middle.drop()
        return result

    def _llama_block(self, x: Value, prefix: str, config: LlamaConfig) -> Value:
        wide = self.tokens * config.width * self.compute_bytes // self.tp
        normed = self.norm(x, prefix + "attention_norm")
        y = self._llama_attention(normed, prefix, config)
        flat = y if self.on_cuda else self.tape.operation(wide, [(y, 0)])
        out = self.row(flat, prefix + "attention.projection")
        drop(normed, y, *(() if self.on_cuda else (flat,)))
        middle = self.add(x, out)
        normed = self.norm(middle, prefix + "mlp_norm")
        inner = self.tokens * config.ffn_width * self.compute_bytes // self.tp
        whole = self.enter(normed)
        gate = self.linear(whole, prefix + "mlp.gate", config.ffn_width // self.tp, self.tokens)
        active = self.tape.operation(inner, [(gate, inner)], saves=[gate])
        gate.drop()
        up = self.linear(whole, prefix + "mlp.up", config.ffn_width // self.tp, self.tokens)
        product = self.tape.operation(inner, [(active, inner), (up, inner)], saves=[active, up])
        drop(active, up)
        out = self.row(product, prefix + "mlp.down")
        drop(product, whole, normed)
        result = self.add(middle, out)
        middle.drop()
        return result

    def _llama_attention(self, normed: Value, prefix: str, config: LlamaConfig) -> Value:
        narrow = config.kv_heads * (config.width // config.heads)
        sizes = [self.tokens * width * self.compute_bytes // self.tp for width in (config.width, narrow, narrow)]
        whole = self.enter(normed)
        layers, name = (("q", config.width), ("k", narrow), ("v", narrow)), f"{prefix}attention."
        raw = [self.linear(whole, name + layer, width // self.tp, self.tokens) for layer, width in layers]
        turned = []
        for value, width in zip(raw[:2], (config.width, narrow), strict=True):
            # In float32: two halves, two products each, their sums, and the halves joined.
            work = 2 * self.tokens * width * FLOAT_BYTES // self.tp
            same, passes = value.size_bytes, [(value, value.size_bytes)]
            turned.append(self.tape.operation(same, passes, workspace_bytes=work, backward_workspace_bytes=work))
        drop(*raw[:2])
        y = self.attention((*turned, raw[2]), tuple(sizes), 0.0)
        drop(*turned, raw[2], whole)
        return y
