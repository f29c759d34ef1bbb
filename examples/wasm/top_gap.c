/* Bans every token whose logit is more than `gap` below the greatest one. Reads the row. */
#define LP_NEEDS_LOGITS
#include "logits_processor.h"

LP_ABOUT({
  "description": "Bans tokens whose logit is far below the greatest one.",
  "parameters": {"properties": {"gap": {"type": "number", "minimum": 0, "maximum": 1000, "default": 3}}}
});

static uint32_t vocab_size, *allowed;
static float gap;
static lp_edits edits;

static void init(const lp_request *request) {
  gap = (float)lp_number(request->params, "gap", 3);
  vocab_size = request->vocab_size;
  allowed = lp_alloc((vocab_size + 31) / 32 * 4);
  edits.allowed = allowed;
}

static const lp_edits *step_logits(const uint32_t *tokens, uint32_t count, float *row) {
  (void)tokens, (void)count;
  float greatest[8];
  for (int lane = 0; lane < 8; lane++) greatest[lane] = -__builtin_inff();
  uint32_t token = 0;
  for (; token + 8 <= vocab_size; token += 8)
    for (int lane = 0; lane < 8; lane++)
      if (row[token + lane] > greatest[lane]) greatest[lane] = row[token + lane];
  float most = -__builtin_inff();
  for (int lane = 0; lane < 8; lane++)
    if (greatest[lane] > most) most = greatest[lane];
  for (; token < vocab_size; token++)
    if (row[token] > most) most = row[token];
  float least = most - gap;
  for (uint32_t word = 0; word < (vocab_size + 31) / 32; word++) {
    uint32_t bits = 0, left = vocab_size - word * 32;
    for (uint32_t bit = 0; bit < (left < 32 ? left : 32); bit++) bits |= (uint32_t)(row[word * 32 + bit] >= least) << bit;
    allowed[word] = bits;
  }
  return &edits;
}
