#include <cstdlib>

#include "api.h"

namespace {

int paeth(int left, int up, int corner) {
  const int along = std::abs(up - corner), down = std::abs(left - corner), across = std::abs(left + up - 2 * corner);
  return along <= down && along <= across ? left : down <= across ? up : corner;
}

/* One row after the other; `up` is all zeros above the first one. */
bool unfilter_row(int filter, const uint8_t* in, const uint8_t* up, int64_t width, uint8_t* out) {
  uint8_t left = 0, corner = 0;
  switch (filter) {
    case 0:
      for (int64_t x = 0; x < width; ++x) out[x] = in[x];
      return true;
    case 1:
      for (int64_t x = 0; x < width; ++x) out[x] = left = static_cast<uint8_t>(in[x] + left);
      return true;
    case 2:
      for (int64_t x = 0; x < width; ++x) out[x] = static_cast<uint8_t>(in[x] + up[x]);
      return true;
    case 3:
      for (int64_t x = 0; x < width; ++x) out[x] = left = static_cast<uint8_t>(in[x] + (left + up[x]) / 2);
      return true;
    case 4:
      for (int64_t x = 0; x < width; ++x) {
        out[x] = left = static_cast<uint8_t>(in[x] + paeth(left, up[x], corner));
        corner = up[x];
      }
      return true;
    default:
      return false;
  }
}

}  // namespace

int32_t gp_png_unfilter(int64_t height, int64_t width, const uint8_t* filtered, uint8_t* out) {
  const uint8_t* up = out; /* of which the first row has to be zeros */
  for (int64_t y = 0; y < height; ++y, filtered += width + 1) {
    uint8_t* row = out + (y + 1) * width;
    if (!unfilter_row(filtered[0], filtered + 1, up, width, row)) return -1;
    up = row;
  }
  return 0;
}
