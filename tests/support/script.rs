//! Programs that tests write.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes an executable file.
///
/// Another process writes it, because this one may start programs of other tests meanwhile: until
/// such a child executes its program, it would hold the file open, and nothing could execute it.
pub fn script(path: &Path, text: impl AsRef<[u8]>) {
    let mut write = Command::new("sh")
        .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    write.stdin.take().unwrap().write_all(text.as_ref()).unwrap();
    assert!(write.wait().unwrap().success(), "{}", path.display());
}
