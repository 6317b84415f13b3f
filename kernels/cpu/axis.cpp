#include "axis.h"

#include <algorithm>
#include <cmath>

namespace gpupipe {
namespace {

double triangle(double x) {
  x = std::fabs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

// Keys' cubic with a = -0.5.
double cubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

int32_t fixed(double weight) {
  return static_cast<int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << kWeightBits));
}

// Which of `size` pixels lies at a place, which may be beyond them: `folded` of kernels/crops.py.
int folded(Padding padding, int at, int size) {
  if (padding == Padding::constant || (at >= 0 && at < size)) return at;
  if (padding == Padding::edge) return std::min(std::max(at, 0), size - 1);
  const int again = padding == Padding::reflect ? 1 : 0;  // less of the outermost pixel, which is not repeated
  const int period = std::max(2 * (size - again), 1), place = (at % period + period) % period;
  return place < size ? place : period - 1 + again - place;
}

}  // namespace

// Pillow 13.0, src/libImaging/Resample.c: precompute_coeffs and normalize_coeffs_8bpc. The order of the operations is
// theirs, because their rounding decides about the last bit.
void Axis::compute(const AxisSpec& spec, Filter filter, bool mirrored) {
  const double scale = (spec.end - spec.begin) / spec.resized;
  const double filter_scale = std::max(scale, 1.0);
  const double support = (filter == Filter::bilinear ? 1.0 : 2.0) * filter_scale;
  const double inverse = 1.0 / filter_scale;
  const auto kernel = filter == Filter::bilinear ? triangle : cubic;

  out = spec.out;
  const int most = std::min(static_cast<int>(std::ceil(support)) * 2 + 1, spec.in);
  stride = (most + 3) / 4 * 4;
  first.resize(out);
  count.resize(out);
  weight.assign(static_cast<size_t>(out) * stride, 0);
  real_.resize(most);
  low = spec.in;
  high = 0;
  for (int i = 0; i < out; ++i) {
    const int position = mirrored ? out - 1 - i : i;
    const double center = spec.begin + (folded(spec.padding, spec.anchor + position, spec.resized) + 0.5) * scale;
    const int begin = std::max(static_cast<int>(center - support + 0.5), 0);
    const int end = std::min(static_cast<int>(center + support + 0.5), spec.in);
    const int taps = std::min(end - begin, most);
    double sum = 0.0;
    for (int j = 0; j < taps; ++j) sum += real_[j] = kernel((j + begin - center + 0.5) * inverse);
    for (int j = 0; j < taps; ++j) {
      if (sum != 0.0) real_[j] /= sum;
      weight[static_cast<size_t>(i) * stride + j] = fixed(real_[j]);
    }
    first[i] = begin;
    count[i] = taps;
    low = std::min(low, begin);
    high = std::max(high, begin + taps);
  }
  for (int32_t& begin : first) begin -= low;
}

}  // namespace gpupipe
