// Layouts of tensors in files and pickles.
#pragma once

namespace loom::dev {

/// Makes torch.save, pickle and their readers carry layouts that are not the default.
void register_metadata();

}  // namespace loom::dev
