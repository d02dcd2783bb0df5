//! Files of named tensors in the safetensors format, and the SHA-256 that shows whether one has
//! changed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use ring::digest::{Context, SHA256};
pub use safetensors::Dtype;
use safetensors::SafeTensors;
use safetensors::tensor::{SafeTensorError, TensorView};
use serde_json::{Map, Value};

use crate::error::Error;
use crate::file;
use crate::tensor::{Tensor, from_bytes, to_bytes};

/// The only entry in a file's metadata. Several entries would be written in a random order.
const ABOUT: &str = "mpienv-trainer";

/// The maximum size of a file to read, in bytes.
const LARGEST: u64 = 1 << 30;

/// A tensor with a name that is unique in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTensor {
    pub name: String,
    pub numbers: Dtype,
    /// Row by row: the last dimension varies fastest.
    pub shape: Vec<usize>,
    /// Little-endian.
    pub bytes: Vec<u8>,
}

impl NamedTensor {
    pub fn new(name: &str, Tensor { shape, data }: &Tensor) -> NamedTensor {
        let (name, shape, bytes) = (name.to_owned(), shape.clone(), to_bytes(data));
        NamedTensor { name, numbers: Dtype::F32, shape, bytes }
    }

    /// Returns nothing if the numbers are not f32.
    pub fn to_tensor(&self) -> Option<Tensor> {
        (self.numbers == Dtype::F32)
            .then(|| Tensor::new(self.shape.clone(), from_bytes(&self.bytes)))
    }
}

/// The contents of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorFile {
    /// These programs' metadata. Empty if another program wrote the file.
    pub about: String,
    /// The tensors, ordered by name if they were read from a file.
    pub tensors: Vec<NamedTensor>,
}

impl TensorFile {
    /// Writes the file atomically. The same content always produces the same bytes.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let mut views = Vec::with_capacity(self.tensors.len());
        for tensor in &self.tensors {
            let view = TensorView::new(tensor.numbers, tensor.shape.clone(), &tensor.bytes);
            views.push((tensor.name.as_str(), view.map_err(incomplete(path))?));
        }
        let about = HashMap::from([(ABOUT.to_owned(), self.about.clone())]);
        let bytes = safetensors::serialize(views, Some(about)).map_err(incomplete(path))?;
        file::write(path, &bytes).map_err(Error::input)
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<TensorFile, Error> {
        Ok(TensorFile::read_with_digest(path)??.0)
    }

    /// Reads a file, and also returns its SHA-256.
    ///
    /// # Errors
    /// If the file cannot be read. The inner error is that of a file which has been read, but is
    /// damaged or not a file of tensors.
    pub fn read_with_digest(path: &Path) -> Result<Result<(TensorFile, String), Error>, Error> {
        let bytes = file::read(path, LARGEST)
            .map_err(|error| Error::in_file(path, format!("cannot be read: {error}")))?;
        Ok(match bytes {
            Some(bytes) => {
                TensorFile::from_bytes(path, &bytes).map(|file| (file, file::sha256(&bytes)))
            }
            None => {
                let text = "the most that a file of tensors may have";
                Err(Error::in_file(path, format!("has more than {LARGEST} bytes, {text}")))
            }
        })
    }

    /// Parses the bytes of a file. Errors name `path`.
    fn from_bytes(path: &Path, bytes: &[u8]) -> Result<TensorFile, Error> {
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(incomplete(path))?;
        let about = metadata.metadata().as_ref().and_then(|entries| entries.get(ABOUT)).cloned();
        let mut tensors = Vec::new();
        for (name, view) in SafeTensors::deserialize(bytes).map_err(incomplete(path))?.tensors() {
            let numbers = view.dtype();
            let (shape, bytes) = (view.shape().to_vec(), view.data().to_vec());
            tensors.push(NamedTensor { name, numbers, shape, bytes });
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(TensorFile { about: about.unwrap_or_default(), tensors })
    }

    pub fn get(&self, name: &str) -> Option<&NamedTensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Builds a file of `tensors`, with the entries and their digest as JSON in its metadata.
    pub fn sealed(mut entries: Entries, tensors: Vec<NamedTensor>) -> TensorFile {
        entries.sort_keys();
        entries.insert(DIGEST.to_owned(), content_digest(&entries, &tensors).into());
        entries.sort_keys();
        TensorFile { about: Value::Object(entries).to_string(), tensors }
    }

    /// Parses all entries.
    pub fn entries(&self) -> Result<Entries, String> {
        serde_json::from_str(&self.about)
            .map_err(|error| format!("its metadata cannot be read: {error}"))
    }

    /// Verifies the digest among the entries, and returns the others.
    ///
    /// # Errors
    /// If the file has changed since it was [sealed](TensorFile::sealed), or another program wrote
    /// it.
    pub fn verify(&self, mut entries: Entries) -> Result<Entries, String> {
        entries.sort_keys();
        let now = content_digest(&entries, &self.tensors);
        match entries.remove(DIGEST) {
            Some(then) if then == now => Ok(entries),
            Some(then) => Err(format!(
                "it has changed since it was written: its SHA-256 is {now}, and was {}",
                text(&then)
            )),
            None => Err("it has no SHA-256 that shows whether it is complete".to_owned()),
        }
    }
}

/// The error of a file in which bytes are missing or wrong.
fn incomplete(path: &Path) -> impl Fn(SafeTensorError) -> Error {
    move |error| Error::in_file(path, format!("is not a complete safetensors file: {error}"))
}

/// The SHA-256 of several parts, in hexadecimal. Each part is preceded by its length, so that
/// different lists cannot collide.
pub fn digest_of<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> String {
    let mut sha = Context::new(&SHA256);
    for part in parts {
        sha.update(&(part.as_ref().len() as u64).to_le_bytes());
        sha.update(part.as_ref());
    }
    file::hex(sha.finish().as_ref())
}

/// Metadata values by name.
pub type Entries = Map<String, Value>;

/// The entry that holds the digest: SHA-256, in hexadecimal, of all other entries and the tensors.
const DIGEST: &str = "sha256";

/// The text of an entry: that of a string, or JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn content_digest(entries: &Entries, tensors: &[NamedTensor]) -> String {
    let mut parts: Vec<Cow<'_, [u8]>> = Vec::new();
    for (name, value) in entries.iter().filter(|(name, _)| *name != DIGEST) {
        parts.extend([name.as_bytes().into(), text(value).into_bytes().into()]);
    }
    let mut tensors: Vec<&NamedTensor> = tensors.iter().collect();
    // Hash the tensors in the order in which files are read.
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    for NamedTensor { name, numbers, shape, bytes } in tensors {
        let size = (numbers.bitsize() as u64 / 8).to_le_bytes().to_vec();
        let shape: Vec<u8> =
            shape.iter().flat_map(|&length| (length as u64).to_le_bytes()).collect();
        parts.extend([name.as_bytes().into(), size.into(), shape.into(), bytes.into()]);
    }
    digest_of(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    fn example() -> TensorFile {
        let tensor = |name: &str, shape: &[usize]| {
            let count: usize = shape.iter().product();
            let bytes = (0..count).flat_map(|number| (number as f32).to_le_bytes()).collect();
            NamedTensor { name: name.to_owned(), numbers: Dtype::F32, shape: shape.to_vec(), bytes }
        };
        let double = NamedTensor { numbers: Dtype::F64, bytes: vec![1; 8], ..tensor("c", &[1]) };
        TensorFile {
            about: "{\"steps\":3}".to_owned(),
            tensors: vec![tensor("a", &[2, 3]), tensor("b", &[]), double],
        }
    }

    #[test]
    fn what_is_written_is_read_and_always_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        example().write(&one).unwrap();
        example().write(&two).unwrap();
        assert_eq!(TensorFile::read(&one).unwrap(), example());
        assert_eq!(fs::read(one).unwrap(), fs::read(two).unwrap());
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        example().write(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        for length in 0..bytes.len() {
            fs::write(&path, &bytes[..length]).unwrap();
            let error = TensorFile::read(&path).unwrap_err().to_string();
            let expected = format!("{}: is not a complete safetensors file: ", path.display());
            assert!(error.starts_with(&expected), "{length}: {error}");
        }
    }

    #[test]
    fn a_file_that_is_too_long_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        File::create(&path).unwrap().set_len(47 << 30).unwrap();
        let error = TensorFile::read(&path).unwrap_err().to_string();
        let text = "has more than 1073741824 bytes, the most that a file of tensors may have";
        assert_eq!(error, format!("{}: {text}", path.display()));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = TensorFile::read(Path::new("/no/such/file")).unwrap_err().to_string();
        assert!(error.starts_with("/no/such/file: cannot be read: No such file"), "{error}");
    }

    #[test]
    fn bytes_that_do_not_fit_the_shape_are_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut file = example();
        file.tensors[0].bytes.pop();
        let error = file.write(&path).unwrap_err().to_string();
        assert!(error.contains(": is not a complete safetensors file: "), "{error}");
        assert!(!path.exists());
    }

    fn opened(file: &TensorFile) -> Result<Entries, String> {
        file.entries().and_then(|entries| file.verify(entries))
    }

    #[test]
    fn a_file_with_any_bit_changed_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let tensor = |name: &str, bytes: &[u8]| NamedTensor {
            name: name.to_owned(),
            numbers: Dtype::F32,
            shape: vec![bytes.len() / 4],
            bytes: bytes.to_vec(),
        };
        let mut entries: Entries = [("epoch", "1"), ("who \"quotes\"", "ä\n")]
            .map(|(a, b)| (a.to_owned(), b.into()))
            .into_iter()
            .collect();
        entries.insert("places".to_owned(), serde_json::json!([{"shape": [4, 2]}, 7]));
        let file = TensorFile::sealed(
            entries.clone(),
            vec![tensor("weight", &[1, 2, 3, 4, 5, 6, 7, 8]), tensor("bias", &[])],
        );
        file.write(&path).unwrap();
        assert_eq!(opened(&TensorFile::read(&path).unwrap()).unwrap(), entries);

        let bytes = fs::read(&path).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &changed).unwrap();
            let Ok(read) = TensorFile::read(&path) else { continue };
            if let Ok(opened) = opened(&read) {
                // The change affected only padding or JSON formatting.
                assert_eq!((opened, read.tensors.len()), (entries.clone(), 2), "bit {bit}");
            }
        }
    }
    #[test]
    fn the_digest_of_a_run_with_texts_alone_is_that_of_earlier_versions() {
        let entries: Entries = [("epoch", "1"), ("ranks", "2")]
            .map(|(a, b)| (a.to_owned(), b.into()))
            .into_iter()
            .collect();
        let tensor = NamedTensor {
            name: "w".to_owned(),
            numbers: Dtype::F32,
            shape: vec![1],
            bytes: vec![1, 2, 3, 4],
        };
        let about = TensorFile::sealed(entries, vec![tensor]).about;
        let sha = "35bc8364ff94aed8068eea10ccf9b4444ad2ef176a72d7a57ed63376e077f252";
        assert_eq!(about, format!("{{\"epoch\":\"1\",\"ranks\":\"2\",\"sha256\":\"{sha}\"}}"));
    }
}
