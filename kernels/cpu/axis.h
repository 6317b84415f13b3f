// The weights of an antialiased resize along one axis, by Pillow's algorithm.
#pragma once

#include <cstdint>
#include <vector>

namespace gpupipe {

enum class Filter : int32_t { bilinear = 0, bicubic = 1 };

// What lies beyond the border of what was resized: kernels/crops.py.
enum class Padding : int32_t { constant = 0, edge = 1, reflect = 2, symmetric = 3 };

// One axis of a resize: source positions [begin, end) of `in` pixels become `resized` pixels, of which those from
// `anchor` on, `out` in number, are wanted; but for a constant padding they may reach beyond these.
struct AxisSpec {
  int in;
  double begin, end;
  int resized, anchor, out;
  Padding padding;
};

constexpr int kWeightBits = 22;  // Pillow's PRECISION_BITS: 32 bits less 8 of a pixel and 2 for negative lobes

// Output pixel i is the sum over j < count[i] of weight[i * stride + j] times source pixel low + first[i] + j.
struct Axis {
  int out = 0;
  int stride = 0;  // weights kept for each output pixel, a multiple of 4; those beyond its count are 0
  int low = 0, high = 0;  // source pixels in use: [low, high)
  std::vector<int32_t> first, count, weight;

  // With `mirrored` output pixel i is what would be out - 1 - i.
  void compute(const AxisSpec& spec, Filter filter, bool mirrored);

 private:
  std::vector<double> real_;
};

}  // namespace gpupipe
