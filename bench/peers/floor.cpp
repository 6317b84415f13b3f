// Decodes the part of each JPEG that a crop needs, all of it by libjpeg, and throws the pixels away.
#include <atomic>
#include <thread>
#include <vector>

#include "../../kernels/cpu/jpeg.h"

// windows: (count, 4) top, left, height, width. Returns how many images failed.
extern "C" int32_t decode_windows(int32_t count, int32_t threads, const uint8_t* const* data, const int64_t* bytes,
                                  const int32_t* windows) {
  constexpr int kStrip = 16;
  const gp_limits limits = {int64_t{1} << 40, int64_t{1} << 30, 1000};
  std::atomic<int> next{0}, failed{0};
  const auto work = [&] {
    gp_jpeg* jpeg = gp_jpeg_new(0);
    std::vector<uint8_t> rows;
    for (int i; (i = next++) < count;) {
      const int32_t* window = windows + i * 4;
      int code = gp_jpeg_open(jpeg, data[i], static_cast<size_t>(bytes[i]), &limits);
      if (code == GP_OK) code = gp_jpeg_begin(jpeg, 1, window[0], window[1], window[2], window[3]);
      if (code == GP_OK) rows.resize(gp_jpeg_row_bytes(jpeg) * kStrip);
      for (int row = 0; code == GP_OK && row < window[2]; row += kStrip) {
        const int strip = window[2] - row < kStrip ? window[2] - row : kStrip;
        code = gp_jpeg_rows(jpeg, rows.data(), gp_jpeg_row_bytes(jpeg), strip);
      }
      if (code != GP_OK) ++failed;
    }
    gp_jpeg_free(jpeg);
  };
  std::vector<std::thread> helpers;
  for (int t = 1; t < threads; ++t) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  return failed;
}
