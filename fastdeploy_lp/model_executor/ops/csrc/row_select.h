// Where weights, taken from the greatest key on, reach a given sum, without sorting.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace fdlp {

// The key at which the weights reach `mass`, and the weight of all greater keys. Both vectors, as long as each other and
// not empty, are left in another order; no weight is 0. A mass of 0 is reached by the greatest key.
inline std::pair<float, double> key_at(std::vector<float>& keys, std::vector<double>& weights, double mass) {
  mass = std::max(mass, std::numeric_limits<double>::min());
  double before = 0.0;
  size_t begin = 0, end = keys.size();
  while (true) {
    const float a = keys[begin], b = keys[begin + (end - begin) / 2], c = keys[end - 1];
    const float pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    size_t greater = begin, at = begin, less = end;
    double greater_weight = 0.0, equal_weight = 0.0;
    while (at < less) {
      if (keys[at] > pivot) {
        greater_weight += weights[at];
        std::swap(keys[at], keys[greater]);
        std::swap(weights[at++], weights[greater++]);
      } else if (keys[at] < pivot) {
        --less;
        std::swap(keys[at], keys[less]);
        std::swap(weights[at], weights[less]);
      } else {
        equal_weight += weights[at++];
      }
    }
    if (before + greater_weight >= mass) {
      end = greater;
    } else if (before + greater_weight + equal_weight >= mass || less == end) {
      return {pivot, before + greater_weight};
    } else {
      before += greater_weight + equal_weight;
      begin = less;
    }
  }
}

}  // namespace fdlp
