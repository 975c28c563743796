// Weights from a generator or a file, and to a file. None of it ever holds more than one unit of the model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/engine.h"
#include "tessera/models/gpt.h"
#include "tessera/safetensors.h"

namespace gpt {

/// GPT-2's initialization: matrices normal(0, 0.02), those that end a residual branch divided by √(2 · layers), norms 1, biases 0. A value
/// depends on (seed, tensor, element) alone.
tessera::Fill initial_weights(std::uint64_t seed, std::int64_t layers);

/// A file of GPT-2 weights, checked by names and shapes.
class WeightFile {
 public:
  /// Throws InputError naming the file: unreadable, malformed, a missing, unexpected or wrongly shaped tensor. Notices say what is skipped.
  explicit WeightFile(const std::string& path);

  tessera::GptConfig sizes() const { return sizes_; }  ///< heads are not in the file: 0
  const std::vector<std::string>& notices() const { return notices_; }
  tessera::Fill fill() const;

 private:
  void read_sizes();
  void check_names();
  void skip_output_matrix(const tessera::SafetensorsEntry& entry);
  const tessera::SafetensorsEntry* find(const std::string& name) const;

  std::string path_;
  std::shared_ptr<const tessera::SafetensorsReader> reader_;
  tessera::GptConfig sizes_;
  std::vector<std::string> notices_;
};

/// Collective. Rank 0 writes the weights as one file, a unit at a time. Throws on every rank if rank 0 cannot.
void export_weights(tessera::World& world, tessera::Engine& engine, const std::string& path);

}  // namespace gpt
