// One token a row by the rules of processors that draw: exponential minimum, tournament, bound of surprise.
//
// Rows are logits as they are drawn from: divided by the temperature, -inf for what is ruled out.
#include <algorithm>
#include <cmath>
#include <vector>

#include "exports.h"
#include "rows/row_candidates.h"
#include "rows/row_scan.h"
#include "rows/row_weights.h"

namespace fdlp {
namespace {

// Of a row: two numbers from the key and the context, the second one odd, or 0 for a draw without the key.
struct Mixers {
    uint32_t flip, factor;
};

// A pseudo-random word of each token; the same as `token_words` in Python.
inline HalfWords words_of(HalfWords tokens, const Mixers& mixers) {
    HalfWords x = (tokens * 0x9E3779B1u) ^ mixers.flip;
    x ^= x >> 16;
    x *= 0x21F0AAADu;
    x ^= x >> 15;
    x *= mixers.factor;
    return x ^ (x >> 15);
}

inline HalfWords words_from(int64_t first, const Mixers& mixers) {
    return words_of(HalfWords{0, 1, 2, 3, 4, 5, 6, 7} + static_cast<uint32_t>(first), mixers);
}

constexpr double kWord = 4294967296.0;

// Adding this makes the greatest of the sums a token drawn from the softmax.
inline double gumbel(uint32_t word) { return -std::log(-std::log((word + 0.5) / kWord)); }

// Logits this far below the greatest one are examined only if their word is so large that they may win.
constexpr float kNear = 4.0f;

struct Best {
    double score = -std::numeric_limits<double>::infinity();
    int64_t token = 0;

    void consider(double below, uint32_t word, int64_t id) {
        const double own = below + gumbel(word);
        if (own > score || (own == score && id < token)) {
            score = own;
            token = id;
        }
    }
};

int64_t choose_gumbel(const Mixers& mixers, const float* row, int64_t size, float max) {
    Best best;
    const float near = max - kNear;
    const auto consider = [&](int64_t token, uint32_t word) { best.consider(static_cast<double>(row[token]) - max, word, token); };
    each_from(row, size, near, [&](int64_t first, int64_t several) {
        const HalfWords words = words_from(first, mixers);
        for (int64_t lane = 0; lane < several; ++lane)
            if (row[first + lane] >= near) consider(first + lane, words[lane]);
    });
    // A token further below needs -ln(u) < exp(-near - best).
    const double least = kWord * std::exp(-std::exp(-kNear - best.score)) - 2.0;
    const uint32_t bound = static_cast<uint32_t>(std::max(0.0, least));
    each_from(row, size, std::numeric_limits<float>::lowest(), [&](int64_t first, int64_t several) {
        const HalfWords words = words_from(first, mixers);
        if (!any((HalfInts)(words >= bound))) return;
        for (int64_t lane = 0; lane < several; ++lane) {
            const float logit = row[first + lane];
            if (words[lane] >= bound && logit < near && logit > kMinusInfinity) consider(first + lane, words[lane]);
        }
    });
    return best.token;
}

// Tokens less likely than this share of the most likely one, e^-depth, are outside the tournament.
constexpr float kHeadDepth = 7.0f;

// The first token, by id, at which the weights of tokens below `bound` reach `target`.
int64_t draw_below(const Weigher& weigher, const float* row, int64_t size, float bound, double target) {
    double buffer[kBlock];
    double reached = 0.0;
    int64_t last = 0;
    for (int64_t begin = 0; begin < size; begin += kBlock) {
        const int64_t count = std::min(kBlock, size - begin);
        weigher.weigh(row + begin, count, buffer);
        for (int64_t at = 0; at < count; ++at) {
            if (row[begin + at] >= bound || buffer[at] == 0.0) continue;
            last = begin + at;
            if ((reached += buffer[at]) >= target) return last;
        }
    }
    return last;
}

// Four doubles are one AVX2 register.
constexpr int64_t kQuad = 4;
typedef double Quad __attribute__((vector_size(kQuad * sizeof(double))));
typedef uint32_t QuadWords __attribute__((vector_size(kQuad * sizeof(uint32_t))));
typedef int32_t QuadInts __attribute__((vector_size(kQuad * sizeof(int32_t))));

Quad load_quad(const double* from) {
    Quad v;
    std::memcpy(&v, from, sizeof(v));
    return v;
}

Quad bit_of(const uint32_t* words, uint32_t bit) {
    QuadWords loaded;
    std::memcpy(&loaded, words, sizeof(loaded));
    return __builtin_convertvector((QuadInts)((loaded >> bit) & 1u), Quad);
}

double total_of(Quad lanes) { return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]); }

int64_t choose_tournament(const Mixers& mixers, int64_t layers, const float* row, int64_t size, float max, float uniform) {
    const Weigher weigher{max, 1.0, 1.0};
    Scratch& head = scratch();
    const double total = weigh_blocks(weigher, row, size, head.blocks);
    const float bound = max - kHeadDepth;
    gather(weigher, row, size, bound, head);
    const double mass = sum(head), target = uniform * total;
    if (target > mass) return draw_below(weigher, row, size, bound, target - mass);
    thread_local std::vector<uint32_t> words;
    const int64_t count = head.count, room = (count + kWide - 1) / kWide * kWide;
    if (static_cast<int64_t>(words.size()) < room) words.resize(room);
    for (int64_t at = 0; at < room; at += kWide) {
        HalfWords tokens;
        std::memcpy(&tokens, head.tokens.data() + at, sizeof(tokens));
        const HalfWords made = words_of(tokens, mixers);
        std::memcpy(words.data() + at, &made, sizeof(made));
    }
    double* shares = head.weights.data();
    std::fill(shares + count, shares + room, 0.0);
    Quad winning = {};
    for (int64_t at = 0; at < room; at += kQuad) {
        const Quad own = load_quad(shares + at) / mass;
        std::memcpy(shares + at, &own, sizeof(own));
        winning += own * bit_of(words.data() + at, 0);
    }
    // A round's winners have the bit more often: of two tokens, the one with the bit wins.
    for (int64_t layer = 0; layer < layers; ++layer) {
        const double lost = 1.0 - total_of(winning);
        const uint32_t bit = static_cast<uint32_t>(layer), next = static_cast<uint32_t>(std::min(layer + 1, layers - 1));
        winning = Quad{};
        for (int64_t at = 0; at < room; at += kQuad) {
            const Quad own = load_quad(shares + at) * (bit_of(words.data() + at, bit) + lost);
            std::memcpy(shares + at, &own, sizeof(own));
            winning += own * bit_of(words.data() + at, next);
        }
    }
    double whole = 0.0;
    for (int64_t at = 0; at < count; ++at) whole += shares[at];
    const double reach = target / mass * whole;
    double reached = 0.0;
    int64_t at = 0;
    while (at + 1 < count && (reached += shares[at]) < reach) ++at;
    while (shares[at] == 0.0 && at > 0) --at;
    return head.tokens[at];
}

struct Surprising {
    int64_t token;
    double surprise;  // in bits
};

Surprising choose_below_surprise(double bits, const float* row, int64_t size, float max, float uniform) {
    const Weigher weigher{max, 1.0, 1.0};
    Scratch& kept = scratch();
    const double total = weigh_blocks(weigher, row, size, kept.blocks);
    const double least = std::min(kOne, std::max(1.0, total * std::exp2(-bits)));
    // Rounded down, so that the weights decide.
    const float bound = static_cast<float>(max + std::log(least / kOne) - 1e-4);
    gather(weigher, row, size, std::min(bound, max), kept);
    double whole = 0.0;
    for (size_t at = 0; at < kept.count; ++at) {
        if (kept.weights[at] < least) kept.weights[at] = 0.0;
        whole += kept.weights[at];
    }
    const double target = uniform * whole;
    double reached = 0.0;
    size_t at = 0;
    while (at + 1 < kept.count && (reached += kept.weights[at]) < target) ++at;
    while (kept.weights[at] == 0.0 && at > 0) --at;
    return {kept.tokens[at], std::log2(total / kept.weights[at])};
}

}  // namespace
}  // namespace fdlp

// tokens[r]: the choice for row r of logits [rows, size], -1 if the row holds a NaN or no finite maximum. A row whose
// factor is 0 is drawn by its uniform number. layers[r]: 0 for the exponential minimum, else rounds of a tournament.
FDLP_EXPORT void fdlp_choose_keyed(const float* logits, int64_t rows, int64_t size, const uint32_t* flips, const uint32_t* factors,
                                   const int64_t* layers, const float* uniform, int64_t* tokens) {
#pragma omp parallel for schedule(dynamic, 1) if (rows > 1)
    for (int64_t r = 0; r < rows; ++r) {
        const float* row = logits + r * size;
        const fdlp::RowScan scan = fdlp::scan_row(row, size);
        const fdlp::Mixers mixers{flips[r], factors[r]};
        if (!scan.usable) {
            tokens[r] = -1;
        } else if (mixers.factor == 0) {
            tokens[r] = fdlp::draw_unranked({scan.max, 1.0, 1.0}, row, size, uniform[r]);
        } else if (layers[r] == 0) {
            tokens[r] = fdlp::choose_gumbel(mixers, row, size, scan.max);
        } else {
            tokens[r] = fdlp::choose_tournament(mixers, layers[r], row, size, scan.max, uniform[r]);
        }
    }
}

// tokens[r]: drawn from the tokens of row r whose surprise is at most bits[r], or the most likely one; surprises[r]: its
// own surprise in the whole row, in bits. tokens[r] is -1 as above.
FDLP_EXPORT void fdlp_choose_below_surprise(const float* logits, int64_t rows, int64_t size, const double* bits, const float* uniform,
                                            int64_t* tokens, double* surprises) {
#pragma omp parallel for schedule(dynamic, 1) if (rows > 1)
    for (int64_t r = 0; r < rows; ++r) {
        const float* row = logits + r * size;
        const fdlp::RowScan scan = fdlp::scan_row(row, size);
        fdlp::Surprising found{-1, 0.0};
        if (scan.usable) found = fdlp::choose_below_surprise(bits[r], row, size, scan.max, uniform[r]);
        tokens[r] = found.token;
        surprises[r] = found.surprise;
    }
}
