"""A logits processor plugin as the first document describes it: multiplies one token's logit by 100."""
