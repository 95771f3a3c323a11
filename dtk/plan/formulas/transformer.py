"""dtk's own transformers as operations on a tape: follows the code of `dtk.models` line by line.

Which layer reads which value, and which values the code still holds while others are computed. Knows no strategy.
"""

from dtk.config.schema import EncoderConfig, GPTConfig, LlamaConfig
from dtk.plan.formulas.activations import FLOAT_BYTES, Layers
from dtk.plan.formulas.tape import Value


class Model(Layers):
    """Runs the parts of a model on a tape."""

    def embed(self) -> Value:
        """Token ids -> the residual stream."""
        n = self.numbers
        size = n.tokens * n.shape.config.width * n.stream_bytes
        x = self.tape.operation(size, [], parameters=[self.gradient("token_embedding.weight")])
        if isinstance(n.shape.config, LlamaConfig):
            return x
        position = self.gradient("position_embedding.weight")
        # The gradient is summed over the batch, then padded with zeros to the whole table.
        rows = n.sequence * n.shape.config.width * n.stream_bytes
        y = self.tape.operation(size, [(x, 0)], parameters=[position], backward_workspace_bytes=rows)
        x.drop()
        return self.dropout(y, n.shape.config.dropout)

    def block(self, x: Value, prefix: str) -> Value:
        """One block; the caller still holds `x`."""
        config = self.numbers.shape.config
        if isinstance(config, LlamaConfig):
            return self._llama_block(x, prefix, config)
        return self._gpt_block(x, prefix, config)

    def head(self, x: Value) -> Value:
        """Apply the final norm and the output projection, return the logits and release `x`."""
        n, config = self.numbers, self.numbers.shape.config
        normed = self.norm(x, "final_norm")
        x.drop()
        if isinstance(config, EncoderConfig):
            # Mean over the tokens: the weighted copy is summed at once, and its backward makes one again.
            pooled = n.batch * config.width * n.stream_bytes
            weighted = n.tokens * config.width * n.stream_bytes
            pool = self.tape.operation(pooled, [(normed, weighted)], workspace_bytes=weighted)
            normed.drop()
            logits = self.linear(pool, "head", config.classes, n.batch, "logits")
            pool.drop()
            return logits
        name = "head" if "head.weight" in self.shapes else "token_embedding"
        logits = self.linear(normed, name, config.vocab_size, n.tokens, "logits")
        normed.drop()
        return logits

    def _gpt_block(self, x: Value, prefix: str, config: GPTConfig | EncoderConfig) -> Value:
        n = self.numbers
        wide = n.tokens * config.width * n.compute_bytes
        normed = self.norm(x, prefix + "attention_norm")
        qkv = self.linear(normed, prefix + "attention.qkv", 3 * config.width, n.tokens)
        parts = self.tape.operation(0, [(qkv, 3 * wide)])
        y = self.attention((parts,), (3 * wide,), wide, config.dropout)
        out = self.dropout(self.linear(y, prefix + "attention.projection", config.width, n.tokens), config.dropout)
        for value in (qkv, parts, y, normed):
            value.drop()
        middle = self.add(x, out)
        normed = self.norm(middle, prefix + "mlp_norm")
        up = self.linear(normed, prefix + "mlp.up", 4 * config.width, n.tokens)
        active = self.tape.operation(4 * wide, [(up, 4 * wide)], saves=[up])
        up.drop()
        down = self.linear(active, prefix + "mlp.down", config.width, n.tokens)
        active.drop()
        out = self.dropout(down, config.dropout)
        normed.drop()
        result = self.add(middle, out)
        middle.drop()
        return result

    def _llama_block(self, x: Value, prefix: str, config: LlamaConfig) -> Value:
        n = self.numbers
        wide = n.tokens * config.width * n.compute_bytes
        normed = self.norm(x, prefix + "attention_norm")
        y = self._llama_attention(normed, prefix, config)
        flat = y if n.on_cuda else self.tape.operation(wide, [(y, 0)])
        out = self.linear(flat, prefix + "attention.projection", config.width, n.tokens)
        for value in (normed, y) if n.on_cuda else (normed, y, flat):
            value.drop()
        middle = self.add(x, out)
        normed = self.norm(middle, prefix + "mlp_norm")
        inner = n.tokens * config.ffn_width * n.compute_bytes
        gate = self.linear(normed, prefix + "mlp.gate", config.ffn_width, n.tokens)
        active = self.tape.operation(inner, [(gate, inner)], saves=[gate])
        gate.drop()
        up = self.linear(normed, prefix + "mlp.up", config.ffn_width, n.tokens)
        product = self.tape.operation(inner, [(active, inner), (up, inner)], saves=[active, up])
        active.drop()
        up.drop()
        out = self.linear(product, prefix + "mlp.down", config.width, n.tokens)
        product.drop()
        normed.drop()
        result = self.add(middle, out)
        middle.drop()
        return result

    def _llama_attention(self, normed: Value, prefix: str, config: LlamaConfig) -> Value:
        n = self.numbers
        narrow = config.kv_heads * (config.width // config.heads)
        sizes = [n.tokens * width * n.compute_bytes for width in (config.width, narrow, narrow)]
        raw = [
            self.linear(normed, f"{prefix}attention.{name}", width, n.tokens)
            for name, width in (("q", config.width), ("k", narrow), ("v", narrow))
        ]
        turned = []
        for value, width in ((raw[0], config.width), (raw[1], narrow)):
            # In float32: two halves, two products each, their sums, and the halves joined.
            work = 2 * n.tokens * width * FLOAT_BYTES
            turned.append(
                self.tape.operation(
                    value.size_bytes,
                    [(value, value.size_bytes)],
                    workspace_bytes=work,
                    backward_workspace_bytes=work,
                )
            )
        raw[0].drop()
        raw[1].drop()
        y = self.attention((*turned, raw[2]), tuple(sizes), sizes[0], 0.0)
        for value in (*turned, raw[2]):
            value.drop()
        return y
