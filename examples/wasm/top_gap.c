/* Bans every token whose logit is more than `gap` below the greatest one. Reads the row, 16 logits at a time: compile it
 * with -O3 -msimd128. */
#define LP_NEEDS_LOGITS
#include <wasm_simd128.h>

#include "logits_processor.h"

LP_ABOUT({
    "description" : "Bans tokens whose logit is far below the greatest one.",
    "parameters" : {"properties" : {"gap" : {"type" : "number", "minimum" : 0, "maximum" : 1000, "default" : 3}}}
});

static uint32_t vocab_size, *allowed;
static float gap;
static lp_edits edits;

static void init(const lp_request* request) {
    gap = (float)lp_number(request->params, "gap", 3);
    vocab_size = request->vocab_size;
    allowed = lp_alloc((vocab_size + 31) / 32 * 4);
    edits.allowed = allowed;
}

static v128_t at(const float* row, uint32_t token) { return wasm_v128_load(row + token); }

static float greatest(const float* row) {
    v128_t first = wasm_f32x4_splat(-__builtin_inff()), second = first, third = first, fourth = first;
    uint32_t token = 0;
    for (; token + 32 <= vocab_size; token += 32) {
        first = wasm_f32x4_pmax(first, wasm_f32x4_pmax(at(row, token), at(row, token + 4)));
        second = wasm_f32x4_pmax(second, wasm_f32x4_pmax(at(row, token + 8), at(row, token + 12)));
        third = wasm_f32x4_pmax(third, wasm_f32x4_pmax(at(row, token + 16), at(row, token + 20)));
        fourth = wasm_f32x4_pmax(fourth, wasm_f32x4_pmax(at(row, token + 24), at(row, token + 28)));
    }
    float lanes[4], most = -__builtin_inff();
    wasm_v128_store(lanes, wasm_f32x4_pmax(wasm_f32x4_pmax(first, second), wasm_f32x4_pmax(third, fourth)));
    for (int lane = 0; lane < 4; lane++)
        if (lanes[lane] > most) most = lanes[lane];
    for (; token < vocab_size; token++)
        if (row[token] > most) most = row[token];
    return most;
}

static const lp_edits* step_logits(const uint32_t* tokens, uint32_t count, float* row) {
    (void)tokens, (void)count;
    float least = greatest(row) - gap;
    v128_t bound = wasm_f32x4_splat(least);
    uint32_t word = 0;
    for (; word < vocab_size / 32; word++) {
        uint32_t bits = 0;
        for (uint32_t four = 0; four < 8; four++)
            bits |= (uint32_t)wasm_i32x4_bitmask(wasm_f32x4_ge(at(row, word * 32 + four * 4), bound)) << four * 4;
        allowed[word] = bits;
    }
    if (vocab_size % 32) allowed[word] = 0;
    for (uint32_t token = word * 32; token < vocab_size; token++) allowed[word] |= (uint32_t)(row[token] >= least) << token % 32;
    return &edits;
}
