// One token a row: the most likely one, or one drawn after min-p, top-k and top-p, without sorting the row.
//
// Tokens are ranked by logit, equal ones by id. Each filter keeps the front of this ranking, so that what is kept is told
// by the last logit that is kept and how many tokens with this very logit are. The draw goes through the kept tokens by
// id until their weights reach the given share of the whole.
#include <algorithm>
#include <vector>

#include "exports.h"
#include "row_scan.h"
#include "row_select.h"
#include "row_weights.h"

namespace fdlp {
namespace {

constexpr int64_t kBlock = 512;

struct Filters {
  float temperature;
  float min_p;
  int64_t top_k;  // 0 keeps all
  float top_p;

  bool ranks() const { return top_k > 0 || top_p < 1.0f; }
};

// The front of the ranking: every logit above `last`, and the first `ties` tokens whose logit is `last`.
struct Kept {
  float last;
  int64_t ties;
  double weight;
};

// Memory that a thread uses for one row after the other.
struct Scratch {
  std::vector<double> weights, part_weights;
  std::vector<float> logits, part_logits;
  std::vector<int32_t> tokens;
};

Scratch& scratch() {
  thread_local Scratch mine;
  return mine;
}

Weigher weigher_of(const Filters& filters, float max) {
  const double least = std::max(1.0, static_cast<double>(filters.min_p) * kOne);
  return {max, 1.0 / filters.temperature, least};
}

// Sums of the weights of each block of the row; gives their sum.
double weigh_blocks(const Weigher& weigher, const float* row, int64_t size, std::vector<double>& sums) {
  sums.clear();
  double buffer[kBlock];
  double total = 0.0;
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    const int64_t count = std::min(kBlock, size - begin);
    Doubles lanes = {};
    int64_t at = 0;
    for (; at + kWide <= count; at += kWide) lanes += weigher(widen(row + begin + at));
    double sum = 0.0;
    for (int64_t lane = 0; lane < kWide; ++lane) sum += lanes[lane];
    if (at < count) {
      weigher.weigh(row + begin + at, count - at, buffer);
      for (int64_t rest = 0; rest < count - at; ++rest) sum += buffer[rest];
    }
    sums.push_back(sum);
    total += sum;
  }
  return total;
}

int64_t draw_unranked(const Weigher& weigher, const float* row, int64_t size, float uniform) {
  std::vector<double>& sums = scratch().weights;
  const double target = uniform * weigh_blocks(weigher, row, size, sums);
  double before = 0.0;
  size_t block = 0;
  while (block + 1 < sums.size() && before + sums[block] < target) before += sums[block++];
  const int64_t begin = static_cast<int64_t>(block) * kBlock;
  double weights[kBlock];
  const int64_t count = std::min(kBlock, size - begin);
  weigher.weigh(row + begin, count, weights);
  int64_t at = 0;
  while (at + 1 < count && (before += weights[at]) < target) ++at;
  return begin + at;
}

// Tokens whose logit is at least `bound`, by id, with their weights.
void gather(const Weigher& weigher, const float* row, int64_t size, float bound, Scratch& to) {
  to.logits.clear();
  to.tokens.clear();
  int64_t at = 0;
  const Floats bounds = splat(bound);
  for (; at < size; at += kLanes) {
    const int64_t end = std::min(at + kLanes, size);
    if (end - at == kLanes && !any(load(row + at) >= bounds)) continue;
    for (int64_t token = at; token < end; ++token) {
      if (row[token] < bound) continue;
      to.logits.push_back(row[token]);
      to.tokens.push_back(static_cast<int32_t>(token));
    }
  }
  const int64_t count = static_cast<int64_t>(to.logits.size());
  to.weights.resize(count + kWide);
  weigher.weigh(to.logits.data(), count, to.weights.data());
}

// What is left of the gathered tokens when those whose logit is below `last`, or that come after the first `ties` equal
// to it, get weight 0; gives the sum.
double keep(Scratch& gathered, float last, int64_t ties) {
  double total = 0.0;
  for (size_t at = 0; at < gathered.logits.size(); ++at) {
    const float logit = gathered.logits[at];
    if (logit < last || (logit == last && --ties < 0)) gathered.weights[at] = 0.0;
    total += gathered.weights[at];
  }
  return total;
}

void keep_top_k(Scratch& gathered, int64_t top_k) {
  if (static_cast<int64_t>(gathered.logits.size()) <= top_k) return;
  std::vector<float>& part = gathered.part_logits;
  part = gathered.logits;
  std::nth_element(part.begin(), part.begin() + (top_k - 1), part.end(), std::greater<float>());
  const float last = part[top_k - 1];
  const int64_t above = std::count_if(part.begin(), part.end(), [last](float logit) { return logit > last; });
  keep(gathered, last, top_k - above);
}

// The logit at which the weights, taken from the greatest logit on, reach `mass`, and the weight before it.
std::pair<float, double> logit_at(Scratch& gathered, double mass) {
  std::vector<float>& logits = gathered.part_logits;
  std::vector<double>& weights = gathered.part_weights;
  logits.clear();
  weights.clear();
  for (size_t at = 0; at < gathered.logits.size(); ++at) {
    if (gathered.weights[at] == 0.0) continue;
    logits.push_back(gathered.logits[at]);
    weights.push_back(gathered.weights[at]);
  }
  return key_at(logits, weights, mass);
}

void keep_top_p(Scratch& gathered, double mass) {
  const auto [last, before] = logit_at(gathered, mass);
  double weight = 0.0;
  for (size_t at = 0; weight == 0.0; ++at) {
    if (gathered.logits[at] == last) weight = gathered.weights[at];
  }
  int64_t ties = 0;
  while (before + static_cast<double>(ties) * weight < mass) ++ties;
  keep(gathered, last, std::max<int64_t>(ties, 1));
}

double sum(const Scratch& gathered) {
  double total = 0.0;
  for (size_t at = 0; at < gathered.logits.size(); ++at) total += gathered.weights[at];
  return total;
}

// Gathers what the filters keep, with weight 0 for what else was looked at. Few tokens carry the weight as a rule, so
// the search begins near the greatest logit and goes further down only when that was not enough.
void select(const Filters& filters, const float* row, int64_t size, float max, Scratch& into) {
  const Weigher weigher = weigher_of(filters, max);
  const double total = filters.top_k > 0 ? 0.0 : weigh_blocks(weigher, row, size, into.weights);
  const double mass = filters.top_p * total;
  for (double depth : {4.0, 10.0, -kNothingBelow}) {
    const bool deepest = depth == -kNothingBelow;
    gather(weigher, row, size, static_cast<float>(max - depth * filters.temperature), into);
    if (filters.top_k > 0) {
      if (!deepest && static_cast<int64_t>(into.logits.size()) < filters.top_k) continue;
      keep_top_k(into, filters.top_k);
      if (filters.top_p < 1.0f) keep_top_p(into, filters.top_p * sum(into));
      return;
    }
    if (!deepest && sum(into) < mass) continue;
    keep_top_p(into, mass);
    return;
  }
}

int64_t draw_ranked(const Filters& filters, const float* row, int64_t size, float max, float uniform) {
  Scratch& kept = scratch();
  select(filters, row, size, max, kept);
  const double target = uniform * sum(kept);
  double reached = 0.0;
  size_t at = 0;
  while (at + 1 < kept.tokens.size() && (reached += kept.weights[at]) < target) ++at;
  return kept.tokens[at];
}

void filter_row(const Filters& filters, const float* row, int64_t size, float* to) {
  const RowScan scan = scan_row(row, size);
  if (filters.temperature == 0.0f || !scan.usable) {
    std::memcpy(to, row, size * sizeof(float));
    return;
  }
  const double inverse = 1.0 / filters.temperature;
  if (!filters.ranks() && filters.min_p == 0.0f) {
    for (int64_t token = 0; token < size; ++token) to[token] = static_cast<float>(row[token] * inverse);
    return;
  }
  Scratch& kept = scratch();
  if (filters.ranks()) {
    select(filters, row, size, scan.max, kept);
  } else {
    gather(weigher_of(filters, scan.max), row, size, static_cast<float>(scan.max + kNothingBelow * filters.temperature),
           kept);
  }
  std::fill(to, to + size, kMinusInfinity);
  for (size_t at = 0; at < kept.tokens.size(); ++at) {
    if (kept.weights[at] > 0.0) to[kept.tokens[at]] = static_cast<float>(kept.logits[at] * inverse);
  }
}

}  // namespace
}  // namespace fdlp

using fdlp::Filters;

// tokens[r]: a token for row r of logits [rows, size], -1 if the row holds a NaN or no finite maximum. `temperature` 0
// takes the most likely token, the first of equals.
FDLP_EXPORT void fdlp_draw_rows(const float* logits, int64_t rows, int64_t size, const float* temperature,
                                const float* min_p, const int64_t* top_k, const float* top_p, const float* uniform,
                                int64_t* tokens) {
#pragma omp parallel for schedule(dynamic, 1) if (rows > 1)
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = logits + r * size;
    const fdlp::RowScan scan = fdlp::scan_row(row, size);
    const Filters filters{temperature[r], min_p[r], top_k[r], top_p[r]};
    if (!scan.usable) {
      tokens[r] = -1;
    } else if (filters.temperature == 0.0f) {
      tokens[r] = scan.argmax;
    } else if (filters.ranks()) {
      tokens[r] = fdlp::draw_ranked(filters, row, size, scan.max, uniform[r]);
    } else {
      tokens[r] = fdlp::draw_unranked(fdlp::weigher_of(filters, scan.max), row, size, uniform[r]);
    }
  }
}

// The logits [rows, size] that a draw works on: divided by the temperature, -inf where a filter leaves a token out.
FDLP_EXPORT void fdlp_filter_rows(const float* logits, int64_t rows, int64_t size, const float* temperature,
                                  const float* min_p, const int64_t* top_k, const float* top_p, float* filtered) {
#pragma omp parallel for schedule(dynamic, 1) if (rows > 1)
  for (int64_t r = 0; r < rows; ++r) {
    fdlp::filter_row({temperature[r], min_p[r], top_k[r], top_p[r]}, logits + r * size, size, filtered + r * size);
  }
}
