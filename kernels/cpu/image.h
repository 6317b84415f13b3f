// One image: from encoded bytes, or from pixels, to the crop that is wanted.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "axis.h"
#include "jpeg.h"
#include "passes.h"

namespace gpupipe {

struct Box {
  int top, left, height, width;
};

// The window of the source image that is resized to resized_height x resized_width, of which the part of out_height x
// out_width at the anchor is wanted, mirrored left to right if `flip`. Coordinates are of the upright image.
struct Geometry {
  Box window;
  int resized_height, resized_width;
  int anchor_top, anchor_left;
  int out_height, out_width;
  bool flip;
};

struct Request {
  const uint8_t* data;
  size_t bytes;
  int height, width;  // expected size as stored, 0 if unknown
  int orientation;    // of EXIF, 1 to 8
  Geometry geometry;
  Filter filter;
  bool fast;  // let libjpeg scale by 1/2, 1/4 or 1/8 first, where the window is that many times the output
};

// Makes images one after another on one thread, in memory that it keeps from one to the next.
class ImageMaker {
 public:
  ImageMaker() : jpeg_(nullptr, gp_jpeg_free) {}

  // Writes out_height rows of out_width 3-byte pixels. Returns GP_OK, or another code of jpeg.h with `message` filled.
  int decode(const Request& request, const gp_limits& limits, const Passes& passes, uint8_t* out, char* message);
  // The same from the pixels of the window, 3 bytes each, without gaps.
  void resize(const uint8_t* pixels, const Geometry& geometry, Filter filter, const Passes& passes, uint8_t* out);
  // Gives memory back that an unusually large image has taken.
  void trim();

 private:
  int decode_upright(const Request& request, const Passes& passes, uint8_t* out);
  int decode_turned(const Request& request, const Passes& passes, uint8_t* out);
  void plan_axes(const Geometry& geometry, Filter filter, int denominator);
  void horizontal(const Passes& passes, const uint8_t* in, size_t in_stride, int rows, int first_row);
  void vertical(const Passes& passes, uint8_t* out);

  std::unique_ptr<gp_jpeg, void (*)(gp_jpeg*)> jpeg_;
  Axis rows_, columns_;
  Prepared prepared_;
  std::vector<uint8_t> source_, turned_, middle_;
  Box region_{};  // of the source after scaling: what is left of the window, before the axes narrow it
};

}  // namespace gpupipe
