// exp and tanh on eight or sixteen floats.
#pragma once

#include "vector.h"

namespace paceline {
namespace {

// e^x, within 2 units in the last place; 0 below -87.3, what e^88 is above 88, NaN of NaN. x = n ln 2 + r with |r| <= ln 2 / 2, and
// e^r by the first eight terms of its series, whose rest is below 2^-26 there.
template <typename V>
PACELINE_INLINE V exp_of(V x) {
  const V lowest = all<V>(-87.3f);
  const V at = least(all<V>(88.0f), most(lowest, x));  // NaN stays
  const V n = nearest_integer(at * all<V>(1.44269504f));
  // ln 2 in two parts, the first with few enough bits that n times it is exact
  V r = fnma(n, all<V>(0.693359375f), at);
  r = fnma(n, all<V>(-2.12194440e-4f), r);
  V sum = all<V>(1.0f / 5040);
  sum = fma(sum, r, all<V>(1.0f / 720));
  sum = fma(sum, r, all<V>(1.0f / 120));
  sum = fma(sum, r, all<V>(1.0f / 24));
  sum = fma(sum, r, all<V>(1.0f / 6));
  sum = fma(sum, r, all<V>(0.5f));
  sum = fma(sum, r, all<V>(1.0f));
  sum = fma(sum, r, all<V>(1.0f));
  return unless_less(x, lowest, sum * power_of_two(n));
}

// 1 - 2 / (e^2x + 1): an absolute error of some 1e-7, which is what a capped score needs.
template <typename V>
PACELINE_INLINE V tanh_of(V x) {
  const V one = all<V>(1.0f);
  return one - all<V>(2.0f) / (exp_of(x + x) + one);
}

}  // namespace
}  // namespace paceline
