// Draws of one token a row, and the logits that a draw works on. row_draw.cpp does the same on the CPU.
#pragma once

#include "filters.cuh"

namespace fdlp {

// The token at which the weights of the kept tokens reach a share of their total; on the last block of the row.
__device__ inline int draw_token(const Place& at, const Weigher& weigher, const Kept& kept, double share) {
    const auto weight_of = [&](int part) -> u64 { return __ldcg(&at.weights[part]); };
    const auto count_of = [&](int part) -> u64 { return __ldcg(&at.counts[part]); };
    const auto goal_of = [&](u64 total) -> u64 { return whole_from(share * static_cast<double>(total)); };
    u64 goal;
    const Reached reached = find_part(at.parts, weight_of, count_of, kept.each, kept.ties, goal_of, goal);
    const int begin = at.begin_of(reached.part), end = at.end_of(reached.part);
    const u64 equal = count_of(reached.part), ties = reached.counted < kept.ties ? kept.ties - reached.counted : 0;
    int last_token = ties > 0 ? end : -1;
    if (ties > 0 && ties < equal) {
        last_token = find_token(begin, end, 0, ties, [&](int token) -> u64 { return at.row[token] == kept.last; }).token;
    }
    const auto weighed = [&](int token) -> u64 {
        const float logit = at.row[token];
        return kept.above(logit) || (logit == kept.last && token <= last_token) ? weigher(logit) : 0;
    };
    return find_token(begin, end, reached.before, goal, weighed).token;
}

}  // namespace fdlp

// The last pass of a draw. tokens[r]: a token for row r of logits [rows, size], -1 if the row holds a NaN or no finite maximum.
// `temperature` 0 takes the most likely token, the first of equals.
FDLP_KERNEL fdlp_draw_rows(const fdlp::Draws given, const float* uniform, long long* tokens) {
    using namespace fdlp;
    const Place at = place_of(given.rows);
    const Filters filters = given.of(at.number);
    const RowScan scan = scan_of(at);
    if (!scan.usable || filters.temperature == 0.0f) {
        if (at.part == 0 && threadIdx.x == 0) tokens[at.number] = scan.usable ? scan.argmax : -1;
        return;
    }
    const Weigher weigher = filters.weigher(scan.max);
    const Kept kept = kept_of(at, weigher, filters.ranks() ? filters.bound(scan.max) : minus_infinity());
    u64 weight = 0, count = 0;
    visit(at, [&](int, float logit) {
        if (kept.above(logit)) weight += weigher(logit);
        count += logit == kept.last;
    });
    store_part(at, block_sum(weight), block_sum(count));
    if (!last_of_row(at)) return;
    const int drawn = draw_token(at, weigher, kept, uniform[at.number]);
    if (threadIdx.x == 0) tokens[at.number] = drawn;
}

// Finds the last token of the ranking that a filter keeps, where one filters: of the tokens with a weight.
FDLP_KERNEL fdlp_find_last(const fdlp::Draws given) {
    using namespace fdlp;
    const Place at = place_of(given.rows);
    const Filters filters = given.of(at.number);
    const RowScan scan = scan_of(at);
    if (filters.temperature == 0.0f || !scan.usable || !(filters.ranks() || filters.min_p > 0.0f)) return;
    const Weigher weigher = filters.weigher(scan.max);
    const Kept kept = kept_of(at, weigher, filters.bound(scan.max));
    u64 latest = 0, count = 0;
    visit(at, [&](int token, float logit) {
        count += logit == kept.last;
        if (!kept.above(logit) || weigher(logit) == 0) return;
        const u64 ranked = ranked_from_last(logit, token);
        latest = ranked > latest ? ranked : latest;
    });
    store_part(at, block_max(latest), block_sum(count));
    if (!last_of_row(at)) return;
    if (kept.each > 0) {
        const auto none = [](int) -> u64 { return 0; };
        const auto count_of = [&](int part) -> u64 { return __ldcg(&at.counts[part]); };
        u64 goal;
        const Reached reached = find_part(at.parts, none, count_of, 1, kept.ties, [](u64 total) -> u64 { return total; }, goal);
        const int begin = at.begin_of(reached.part), end = at.end_of(reached.part);
        const auto equal = [&](int token) -> u64 { return at.row[token] == kept.last; };
        const int last_token = find_token(begin, end, reached.before, goal, equal).token;
        if (threadIdx.x == 0) at.state->last_token = last_token;
        return;
    }
    latest = max_of_parts(at.weights, at.parts);
    if (threadIdx.x == 0) {
        at.state->last = float_of(~static_cast<u32>(latest >> 32));
        at.state->last_token = static_cast<int>(static_cast<u32>(latest));
    }
}

// The last pass of filters. The logits [rows, size] that a draw works on: divided by the temperature, -inf where a filter leaves a token
// out.
FDLP_KERNEL fdlp_filter_rows(const fdlp::Draws given, float* filtered) {
    using namespace fdlp;
    const Place at = place_of(given.rows);
    const Filters filters = given.of(at.number);
    float* to = filtered + static_cast<long long>(at.number) * at.size;
    if (filters.temperature == 0.0f || !scan_of(at).usable) {
        visit_quads(at, [&](int first, float4 quad) { store_quad(to, first, at.end, quad); });
        return;
    }
    const bool all = !filters.ranks() && !(filters.min_p > 0.0f);
    const float last = all ? minus_infinity() : at.state->last;
    const int last_token = all ? at.size : at.state->last_token;
    const double inverse = 1.0 / static_cast<double>(filters.temperature);
    const auto scaled = [&](int token, float logit) -> float {
        const bool out = logit < last || (logit == last && token > last_token);
        return out ? minus_infinity() : static_cast<float>(static_cast<double>(logit) * inverse);
    };
    visit_quads(at, [&](int first, float4 quad) {
        const float4 kept{scaled(first, quad.x), scaled(first + 1, quad.y), scaled(first + 2, quad.z), scaled(first + 3, quad.w)};
        store_quad(to, first, at.end, kept);
    });
}
