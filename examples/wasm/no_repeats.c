/* Lowers the logits of tokens that occurred among the last `window` ones by `penalty`. */
#include "logits_processor.h"

#define MOST 256

LP_ABOUT({
    "description" : "Lowers the logits of the latest tokens.",
    "parameters" : {
        "properties" : {
            "penalty" : {"type" : "number", "minimum" : 0, "maximum" : 100, "default" : 5},
            "window" : {"type" : "integer", "minimum" : 1, "maximum" : 256, "default" : 64}
        }
    }
});

static uint32_t window, count, latest[MOST], listed[MOST];
static float penalty, values[MOST];
static lp_edits edits = {.tokens = listed, .values = values};

static void init(const lp_request* request) {
    penalty = (float)lp_number(request->params, "penalty", 5);
    window = (uint32_t)lp_number(request->params, "window", 64);
}

static const lp_edits* step(const uint32_t* tokens, uint32_t num_tokens) {
    for (uint32_t place = 0; place < num_tokens; place++) latest[count++ % window] = tokens[place];
    uint32_t here = count < window ? count : window;
    edits.num_biases = 0;
    for (uint32_t place = 0; place < here; place++) {
        uint32_t known = 0;
        while (known < edits.num_biases && listed[known] != latest[place]) known++;
        if (known < edits.num_biases) continue;
        listed[known] = latest[place];
        values[known] = -penalty;
        edits.num_biases++;
    }
    return edits.num_biases ? &edits : 0;
}
