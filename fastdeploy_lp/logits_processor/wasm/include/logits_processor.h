/* Interface of a logits processor in WebAssembly, for C and C++; docs/wasm.md describes it.
 *
 * Compile with:
 *   clang --target=wasm32 -O2 -nostdlib -Wl,--no-entry -I "$(fastdeploy-lp new-processor --include)" -o mine.wasm mine.c
 *
 * A program defines `init`, and either `step` or, with LP_NEEDS_LOGITS defined before this header, `step_logits`.
 */
#ifndef LOGITS_PROCESSOR_H
#define LOGITS_PROCESSOR_H

#include <stddef.h>
#include <stdint.h>

#define LP_EXPORT(name) __attribute__((export_name(name), visibility("default")))
#define LP_IMPORT(name) __attribute__((import_module("fastdeploy_lp"), import_name(name)))

/* Describes the processor to servers: LP_ABOUT({"description": "…", "parameters": {…}}), once in a program.
 *
 * `parameters` is the JSON Schema of a request's arguments. They are checked before `init`, and defaults are filled in.
 */
#define LP_ABOUT(...) LP_SECTION(LP_QUOTED(#__VA_ARGS__))
#define LP_QUOTED(text) #text
#define LP_SECTION(quoted) __asm__(".section .custom_section.logits_processor,\"\",@\n.ascii " quoted "\n.text\n")

#ifdef __cplusplus
extern "C" {
#endif

/* A text in memory: UTF-8, not terminated by a zero. */
typedef struct {
    const char* begin;
    uint32_t length;
} lp_text;

/* Edits of the row, made in this order: `row`, biases, `allowed`. A field of 0 changes nothing.
 *
 * num_biases, tokens, values: values are added to the logits of tokens; -INFINITY bans one. A token may occur twice.
 * allowed: a bit for each token of the vocabulary, the lowest first; all others are banned.
 * row: vocab_size logits that replace the row.
 * finish, finish_length: the reason with which the request ends before this step's token.
 * emits, num_emits: JSON values for the client, sent with this step's token.
 * rewind: the last output tokens that are taken back, without this step's token; the tokens of banned, num_banned cannot
 * be sampled there. Declare "max_rewind" in LP_ABOUT.
 */
typedef struct {
    uint32_t num_biases;
    const uint32_t* tokens;
    const float* values;
    const uint32_t* allowed;
    const float* row;
    const char* finish;
    uint32_t finish_length;
    const lp_text* emits;
    uint32_t num_emits;
    uint32_t rewind;
    const uint32_t* banned;
    uint32_t num_banned;
} lp_edits;

_Static_assert(sizeof(void*) != 4 || sizeof(lp_edits) == 48, "lp_edits has 12 words");

/* Facts about a request.
 *
 * params: JSON object of its arguments. prompt, prompt_length: its tokens. seed: the request's; the only randomness.
 */
typedef struct {
    lp_text params;
    const uint32_t* prompt;
    uint32_t prompt_length;
    uint32_t vocab_size;
    uint64_t seed;
} lp_request;

/* Called once, before the first step. What it points to stays valid. */
static void init(const lp_request* request);

#ifndef LP_NEEDS_LOGITS
/* Returns the edits after `count` new tokens, none before the first one; NULL for none. */
static const lp_edits* step(const uint32_t* tokens, uint32_t count);
#else
/* The same with the row [vocab_size], which it may change and return. A second call with count 0 has other logits for
 * the same step: a processor before this one has failed. */
static const lp_edits* step_logits(const uint32_t* tokens, uint32_t count, float* row);
#endif

/* Functions of the server. An output that does not fit `capacity` is not written; the result is its whole length. */

/* Ends the request with this reason. In `init`, the client receives the reason as an error of its arguments. */
LP_IMPORT("fail") void lp_fail(const char* text, uint32_t length);
/* Tokens of a text, without special tokens. */
LP_IMPORT("tokenize") uint32_t lp_tokenize(const char* text, uint32_t length, uint32_t* out, uint32_t capacity);
/* Text of tokens. */
LP_IMPORT("detokenize") uint32_t lp_detokenize(const uint32_t* tokens, uint32_t count, char* out, uint32_t capacity);
/* Bytes of a token, which may be a part of a character. */
LP_IMPORT("token_bytes") uint32_t lp_token_bytes(uint32_t token, char* out, uint32_t capacity);
/* Bytes of all tokens, one after the other; token t has offsets[t] to offsets[t + 1]. Both are written, or
 * neither. `offsets` has vocab_size + 1 numbers. */
LP_IMPORT("vocabulary") uint32_t lp_vocabulary(uint32_t* offsets, char* out, uint32_t capacity);

/* The number of output tokens that can be taken back now. */
LP_IMPORT("rewindable") uint32_t lp_rewindable(void);

/* Memory. Nothing is freed: an instance serves one request, and its memory goes with it. */

extern unsigned char __heap_base;
static uint32_t lp_top;

LP_EXPORT("lp_alloc") void* lp_alloc(uint32_t size) {
    if (!lp_top) lp_top = (uint32_t)(uintptr_t)&__heap_base;
    uint32_t begin = (lp_top + 15) & ~15u;
    if (begin + size < begin) __builtin_trap();
    uint32_t pages = (begin + size + 65535) >> 16;
    uint32_t has = (uint32_t)__builtin_wasm_memory_size(0);
    if (pages > has && (uint32_t)__builtin_wasm_memory_grow(0, pages - has) == UINT32_MAX) __builtin_trap();
    lp_top = begin + size;
    return (void*)(uintptr_t)begin;
}

/* Calls between the server and the functions above. */

LP_EXPORT("lp_init")
uint32_t lp_init(const char* params, uint32_t length, const uint32_t* prompt, uint32_t prompt_length, uint32_t vocab_size, uint64_t seed) {
    lp_request request = {{params, length}, prompt, prompt_length, vocab_size, seed};
    init(&request);
    return 0;
}

#ifndef LP_NEEDS_LOGITS
LP_EXPORT("lp_step") const lp_edits* lp_step(const uint32_t* tokens, uint32_t count) { return step(tokens, count); }
#else
LP_EXPORT("lp_step_logits") const lp_edits* lp_step_logits(const uint32_t* tokens, uint32_t count, float* row) {
    return step_logits(tokens, count, row);
}
#endif

/* Reading of arguments: the number at `name` of a flat JSON object, `otherwise` if it is missing. */
static double lp_number(lp_text json, const char* name, double otherwise) {
    uint32_t length = 0;
    while (name[length]) length++;
    for (uint32_t at = 0; at + length + 3 < json.length; at++) {
        const char* key = json.begin + at;
        if (key[0] != '"' || key[length + 1] != '"' || key[length + 2] != ':') continue;
        uint32_t same = 0;
        while (same < length && key[1 + same] == name[same]) same++;
        if (same < length) continue;
        const char *text = key + length + 3, *end = json.begin + json.length;
        double sign = 1, value = 0, place = 1;
        while (text < end && *text == ' ') text++;
        if (text < end && *text == '-') sign = -1, text++;
        for (; text < end && *text >= '0' && *text <= '9'; text++) value = value * 10 + (*text - '0');
        if (text < end && *text == '.')
            for (text++; text < end && *text >= '0' && *text <= '9'; text++) value += (*text - '0') * (place /= 10);
        if (text < end && (*text == 'e' || *text == 'E')) {
            int negative = 0, power = 0;
            if (++text < end && (*text == '-' || *text == '+')) negative = *text++ == '-';
            for (; text < end && *text >= '0' && *text <= '9' && power < 400; text++) power = power * 10 + (*text - '0');
            for (; power > 0; power--) value = negative ? value / 10 : value * 10;
        }
        return sign * value;
    }
    return otherwise;
}

/* Clang calls these for copies of structures. */
#if !defined(LP_HAS_LIBC)
void* memcpy(void* restrict to, const void* restrict from, size_t count) {
    unsigned char* out = to;
    const unsigned char* in = from;
    while (count--) *out++ = *in++;
    return to;
}
void* memset(void* to, int value, size_t count) {
    unsigned char* out = to;
    while (count--) *out++ = (unsigned char)value;
    return to;
}
#endif

#ifdef __cplusplus
}
#endif

#endif
