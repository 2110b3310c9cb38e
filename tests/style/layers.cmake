# The allowed uses: each folder may use itself and the folders named here. So amp/ can be deleted and everything below it still compiles.
# Read by layering.cmake (includes) and layer_symbols.sh (linked symbols).
set(may_core "")
set(may_autograd core)
set(may_distributed autograd core)
set(may_nn autograd core)
set(may_optim autograd core)
set(may_amp distributed nn optim autograd core)
set(may_data core)
set(may_train amp distributed nn optim data autograd core)
set(may_backends core)
# Nothing below may know of it.
set(may_onnx amp distributed nn optim autograd core)
# A library of its own: nothing else may include it.
set(may_lab train data amp distributed nn optim autograd core)
