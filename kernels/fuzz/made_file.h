// A made JPEG: a square of ramps, written by libjpeg.
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <vector>

#include <jpeglib.h>

using Bytes = std::vector<uint8_t>;

inline Bytes made_file(int size, bool progressive) {
  jpeg_compress_struct codec;
  jpeg_error_mgr errors;
  codec.err = jpeg_std_error(&errors);
  jpeg_create_compress(&codec);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&codec, &memory, &bytes);
  codec.image_width = codec.image_height = static_cast<JDIMENSION>(size);
  codec.input_components = 3;
  codec.in_color_space = JCS_RGB;
  jpeg_set_defaults(&codec);
  if (progressive) jpeg_simple_progression(&codec);
  jpeg_start_compress(&codec, TRUE);
  Bytes row(static_cast<size_t>(size) * 3);
  for (int y = 0; y < size; ++y) {
    for (size_t x = 0; x < row.size(); ++x) row[x] = static_cast<uint8_t>(x * 2 + y * 3 + size);
    JSAMPROW rows = row.data();
    jpeg_write_scanlines(&codec, &rows, 1);
  }
  jpeg_finish_compress(&codec);
  jpeg_destroy_compress(&codec);
  Bytes file(memory, memory + bytes);
  free(memory);
  return file;
}
