//! Files that are whole or not there, folders that belong to one run, and tensors in files.

pub mod atomic_write;
pub mod digest;
pub mod folder;
pub mod regular_file;
pub mod tensor_file;
