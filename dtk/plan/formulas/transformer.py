"""dtk's own transformers as operations on a tape. Follows the code of `dtk.models` line by line."""

from math import ceil, prod

from dtk.config.schema import EncoderConfig, GPTConfig, LlamaConfig, MoEConfig
from dtk.plan.formulas.activations import FLOAT_BYTES, Layers, plain
from dtk.plan.formulas.tape import Value, drop

INDEX_BYTES = 8  # Bytes of an int64.
MAX_EXPERT_GROUPS = 8
"""Chosen: experts walked one by one; more are walked in this many equal groups, which overstates workspaces."""


class Model(Layers):
    """Runs the layers of a model on a tape."""

    def embed(self) -> Value:
        """Look up token ids and return the residual stream."""
        whole = self.tokens * self.shape.config.width * self.stream_bytes
        size = self.stream_size
        table = [self.gradient("token_embedding.weight")]
        # With tensor parallelism, the local ids and a mask of the others, whose rows become zeros, are kept.
        x = self.tape.operation(whole, [], parameters=table, kept_bytes=8 * self.tokens if self.tp > 1 else 0)
        if self.tp > 1:
            x = self.tape.then(x, whole, kept_bytes=self.tokens)
        x = self.leave(x)
        if isinstance(self.shape.config, LlamaConfig):
            return x
        position = self.gradient("position_embedding.weight")
        # The gradient is summed over the batch, then padded with zeros to the whole table.
        rows = size // self.batch
        y = self.tape.then(x, size, 0, parameters=[position], backward_workspace_bytes=rows)
        return self.dropout(y, self.shape.config.dropout)

    def block(self, x: Value, prefix: str) -> Value:
        """Run one block; the caller still holds `x`."""
        config = self.shape.config
        normed = self.norm(x, prefix + "attention_norm")
        if isinstance(config, LlamaConfig):
            out = self._llama_attention(normed, prefix, config)
        else:
            out = self._gpt_attention(normed, prefix, config)
        normed.drop()
        middle = self.add(x, out)
        normed = self.norm(middle, prefix + "mlp_norm")
        if not isinstance(config, LlamaConfig):
            whole = self.enter(normed)
            up = self.linear(whole, prefix + "mlp.up", 4 * config.width // self.tp, self.tokens)
            whole.drop()
            active = self.tape.then(up, up.size_bytes, saves=[up])
            down = self.row(active, prefix + "mlp.down")
            active.drop()
            out = self.dropout(down, config.dropout)
        elif isinstance(config, MoEConfig) and int(prefix.split(".")[1]) >= self.shape.dense:
            out = self.mixture(normed, prefix, config)
        else:
            out = self.swiglu(normed, prefix + "mlp", config.ffn_width)
        normed.drop()
        result = self.add(middle, out)
        middle.drop()
        return result

    def head(self, x: Value) -> Value:
        """Apply the final norm and the output projection, return the logits and release `x`."""
        config = self.shape.config
        normed = self.norm(x, "final_norm")
        x.drop()
        if isinstance(config, EncoderConfig):
            # Mean over the tokens: the weighted copy is summed immediately, and its backward creates one again.
            if self.tp > 1 and self.parallel.sequence_parallel:
                part, normed = normed, self.join(normed, self.batch > 1)
                part.drop()
            pooled = self.batch * config.width * self.stream_bytes
            weighted = self.tokens * config.width * self.stream_bytes
            pool = self.tape.then(normed, pooled, weighted, workspace_bytes=weighted)
            logits = self.linear(pool, "head", config.classes, self.batch, "logits")
            pool.drop()
            return logits
        name = "head" if "head.weight" in self.shapes else "token_embedding"
        whole = self.enter(normed)
        logits = self.linear(whole, name, config.vocab_size // self.tp, self.tokens, "logits")
        drop(whole, normed)
        return logits

    def _gpt_attention(self, normed: Value, prefix: str, config: GPTConfig | EncoderConfig) -> Value:
        wide = self.tokens * config.width * self.compute_bytes // self.tp
        whole = self.enter(normed)
        qkv = self.linear(whole, prefix + "attention.qkv", 3 * config.width // self.tp, self.tokens)
        whole.drop()
        parts = self.tape.operation(0, [(qkv, 3 * wide)])
        y = self.attention((parts,), (3 * wide,), config.dropout)
        out = self.dropout(self.row(y, prefix + "attention.projection"), config.dropout)
        drop(qkv, parts, y)
        return out

    def _llama_attention(self, normed: Value, prefix: str, config: LlamaConfig) -> Value:
        narrow = config.kv_heads * (config.width // config.heads)
        sizes = [self.tokens * width * self.compute_bytes // self.tp for width in (config.width, narrow, narrow)]
        whole = self.enter(normed)
        layers, name = (("q", config.width), ("k", narrow), ("v", narrow)), f"{prefix}attention."
        raw = [self.linear(whole, name + layer, width // self.tp, self.tokens) for layer, width in layers]
        turned = []
        for value, width in zip(raw[:2], (config.width, narrow), strict=True):
            # In float32: two halves, two products each, their sums, and the concatenated halves.
            work = 2 * self.tokens * width * FLOAT_BYTES // self.tp
            same, passes = value.size_bytes, [(value, value.size_bytes)]
            turned.append(self.tape.operation(same, passes, workspace_bytes=work, backward_workspace_bytes=work))
        drop(*raw[:2])
        y = self.attention((*turned, raw[2]), tuple(sizes), 0.0)
        drop(*turned, raw[2], whole)
        flat = y if self.on_cuda else self.tape.operation(sizes[0], [(y, 0)])
        out = self.row(flat, prefix + "attention.projection")
        drop(y, *(() if self.on_cuda else (flat,)))
        return out

    def swiglu(self, normed: Value, name: str, width: int) -> Value:
        """Run a SwiGLU network of this inner width."""
        inner = self.tokens * width * self.compute_bytes // self.tp
        whole = self.enter(normed)
        gate = self.linear(whole, name + ".gate", width // self.tp, self.tokens)
        active = self.tape.then(gate, inner, saves=[gate])
        up = self.linear(whole, name + ".up", width // self.tp, self.tokens)
        product = self.tape.operation(inner, [(active, inner), (up, inner)], saves=[active, up])
        drop(active, up)
        out = self.row(product, name + ".down")
        drop(product, whole)
        return out

    def mixture(self, normed: Value, prefix: str, config: MoEConfig) -> Value:
        """Route the rank's tokens to experts; the load is assumed balanced."""
        tape, tokens, item = self.tape, self.stream_tokens, self.compute_bytes
        rows, scores = tokens * config.experts_per_token, FLOAT_BYTES * tokens * config.experts
        wide, chosen, index = FLOAT_BYTES * tokens * config.width, FLOAT_BYTES * rows, INDEX_BYTES * rows
        x = normed.hold() if normed.size_bytes == wide else tape.operation(wide, [(normed, normed.size_bytes)])
        logits = tape.then(x, scores, saves=[x], parameters=[self.gradient(prefix + "mlp.router.weight")])
        probabilities = tape.operation(scores, [(logits, scores)], saves_output=True)
        weights = tape.operation(chosen, [(probabilities, scores)], kept_bytes=index)
        if config.experts_per_token > 1:
            weights = tape.then(weights, chosen, saves=[weights], kept_bytes=FLOAT_BYTES * tokens)
        size, sent = tokens * config.width * item, rows * config.width * item
        x = tape.operation(size, [(normed, normed.size_bytes)]) if self.casts else normed.hold()
        tape.ledger.allocate("temporaries", index * (config.experts + 2)).drop()  # One-hot encoding and sorting.
        slots = rows
        if config.capacity_factor is not None:  # Empty slots hold a row of zeros.
            slots = config.experts * ceil(config.capacity_factor * rows / config.experts)
            x = tape.then(x, size)
        leaving = tape.then(x, slots * config.width * item, kept_bytes=INDEX_BYTES * slots)
        output = self._exchanged(leaving, slots, prefix, config)
        leaving.drop()
        if config.capacity_factor is not None:
            output = tape.then(output, sent, kept_bytes=index)
        output = tape.then(output, sent, kept_bytes=index)
        narrow = 0 if item == FLOAT_BYTES else rows * item
        weighted = [(output, sent), (weights, chosen)]
        product = tape.operation(sent, weighted, [output, weights], narrow, backward_workspace_bytes=sent)
        out = tape.operation(size, [(product, 0)])
        drop(product, output, weights)
        if config.shared_experts:
            shared = self.swiglu(normed, prefix + "mlp.shared", config.shared_experts * config.expert_width)
            out, routed = tape.operation(self.stream_size, [(out, 0), (shared, 0)]), out
            drop(routed, shared)
        # Load-balancing loss and router z-loss: their gradients come first in backward.
        tape.ledger.allocate("temporaries", index * config.experts).drop()
        losses = [(out, 0), (logits, scores), (probabilities, scores)]
        routed_out = tape.operation(0, losses, [logits], 2 * FLOAT_BYTES * tokens)
        drop(out, logits, probabilities)
        return routed_out

    def _exchanged(self, leaving: Value, rows: int, prefix: str, config: MoEConfig) -> Value:
        """Return the experts' outputs for these rows, which are exchanged with the ranks that hold the experts."""
        tape, size, holding = self.tape, leaving.size_bytes, self.holding
        if holding is None or not self.shape.experts:
            return self._experts(leaving, rows, prefix, config)
        unit, arrived = holding.unit(int(prefix.split(".")[1]), experts=True), tape.operation(size, [(leaving, size)])
        by_expert = tape.operation(size, [(arrived, size)])
        holding.before_forward(unit)
        entered = tape.operation(
            0, [(by_expert, 0)], before_backward=lambda: holding.after_backward(unit) if tape.halves is None else None
        )
        output = self._experts(entered, rows, prefix, config)
        drop(by_expert, entered)
        returning = tape.operation(0, [(output, 0)], before_backward=lambda: holding.before_backward(unit))
        holding.after_forward(unit)
        returned = tape.then(tape.then(returning, size), size)
        drop(output, arrived)
        return returned

    def _experts(self, x: Value, rows: int, prefix: str, config: MoEConfig) -> Value:
        """Run the experts of this rank in sequence, at most `MAX_EXPERT_GROUPS` of them separately."""
        tape, width, name = self.tape, config.width, prefix + "mlp.experts."
        local = prod(self.shapes[plain(name + "gate")]) // (width * config.expert_width)
        groups = min(local, MAX_EXPERT_GROUPS)
        inner, item = rows * config.expert_width * self.compute_bytes // groups, x.size_bytes // groups
        parts, outputs = tape.split(x, groups), []

        def linear(given: Value, layer: str, out_bytes: int) -> Value:
            whole, size = self.gradient(name + layer)
            cast = size // groups // self.stream_bytes * self.compute_bytes if self.casts else 0
            own, inward = [(whole, size // groups)], [(given, given.size_bytes)]
            return tape.operation(out_bytes, inward, [given], cast, own, parts=True)

        for part in parts:
            gate = linear(part, "gate", inner)
            active = tape.then(gate, inner, saves=[gate])
            up = linear(part, "up", inner)
            product = tape.operation(inner, [(active, inner), (up, inner)], [active, up])
            drop(active, up)
            outputs.append(linear(product, "down", item))
            product.drop()
        out = tape.operation(x.size_bytes, [(each, 0) for each in outputs])
        drop(*outputs, *parts)
        return out
