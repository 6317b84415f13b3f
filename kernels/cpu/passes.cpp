#include "passes.h"

#include <cstring>

namespace gpupipe {
namespace {

// A small resize of a made pattern, both ways at once.
std::vector<uint8_t> trial(const Passes& passes, Filter filter, int in, int out) {
  Axis axis;
  axis.compute({in, 0.0, static_cast<double>(in), out, 0, out}, filter, false);
  const size_t in_stride = static_cast<size_t>(in) * 4 + kRowSlack, between = static_cast<size_t>(out) * 3 + kRowSlack;
  std::vector<uint8_t> source(in_stride * in), middle(between * in), result(static_cast<size_t>(out) * out * 3);
  uint32_t state = 1;
  for (auto& byte : source) byte = static_cast<uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
  Prepared prepared;
  passes.prepare(axis, prepared);
  passes.horizontal(axis, prepared, source.data(), in_stride, in, middle.data(), between);
  passes.vertical(axis, middle.data(), between, static_cast<size_t>(out) * 3, result.data(),
                  static_cast<size_t>(out) * 3);
  return result;
}

// Some variants meet their CPU for the first time on a user's machine; a wrong one must not serve.
bool proves_itself(const Passes& passes) {
  for (const Filter filter : {Filter::bilinear, Filter::bicubic}) {
    for (const int out : {11, 37, 90}) {
      if (trial(passes, filter, 37, out) != trial(kPortablePasses, filter, 37, out)) return false;
    }
  }
  return true;
}

const Passes& choose() {
  for (const Passes* passes : {avx512_passes(), avx2_passes()}) {
    if (passes != nullptr && proves_itself(*passes)) return *passes;
  }
  return kPortablePasses;
}

}  // namespace

const Passes& best_passes() {
  static const Passes& best = choose();
  return best;
}

const Passes* find_passes(const char* name) {
  for (const Passes* passes : {avx512_passes(), avx2_passes(), &kPortablePasses}) {
    if (passes != nullptr && std::strcmp(passes->name, name) == 0) return passes;
  }
  return nullptr;
}

}  // namespace gpupipe
