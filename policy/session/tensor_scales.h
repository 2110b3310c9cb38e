// Delayed scaling: the history of each tensor whose scale follows from earlier steps. As
// TransformerEngine's DelayedScaling. It is on the tensor's device, so the host does not wait.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <halftone/core/formats/quantizer.h>
#include <halftone/core/named_tensors.h>

namespace halftone::policy {

class TensorScales {
 public:
  /// Returns the scale to use now; if `notes`, records x's largest magnitude for the end of the
  /// step. `name`: the tensor's.
  Tensor scale_for(const std::string& name, const Quantizer& quantizer, const Tensor& x,
                   bool notes);
  /// Return the magnitudes recorded since the last end_step(), which waits for a GPU; and record
  /// those of another process.
  struct Noted {
    std::string name;
    Quantizer quantizer;
    float amax;
  };
  std::vector<Noted> noted() const;
  void note(const Noted& seen);
  /// Adds the recorded magnitudes to the histories and updates the scales; magnitudes that are not
  /// finite change nothing. A history counts the steps in which its tensor was seen.
  void end_step();

  /// Adds "amax.<name>", "history.<name>", "position.<name>" and "scale.<name>" to a state.
  void add_to(NamedTensors& state) const;
  /// Takes those entries of a state; entries for tensors not met yet are kept for them.
  void load(const NamedTensors& state);

 private:
  struct Memory {
    Quantizer quantizer{};
    Tensor amax{}, history{}, position{}, scale{};
    bool noted = false;  // something was recorded since the last step
  };
  Memory& memory_for(const std::string& name, const Quantizer& quantizer, Device device);
  std::map<std::string, Memory> memories_;
  NamedTensors waiting_;
};

}  // namespace halftone::policy
