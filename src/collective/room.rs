//! Memory for bytes that another rank announces.

/// Makes room in `bytes`, which are then empty, for `length` bytes. The system provides the memory
/// as bytes arrive.
///
/// # Errors
/// Why the announcement cannot be true or cannot be met.
pub(super) fn make(bytes: &mut Vec<u8>, length: usize, own: u32) -> Result<(), String> {
    bytes.clear();
    bytes
        .try_reserve_exact(length)
        .map_err(|_| format!("it announced {length} bytes, more than rank {own} can allocate"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_announcement_beyond_all_memory_is_an_error() {
        let mut bytes = vec![1; 8];
        for length in [usize::MAX, 1 << 60] {
            let error = super::make(&mut bytes, length, 3).unwrap_err();
            assert_eq!(
                error,
                format!("it announced {length} bytes, more than rank 3 can allocate")
            );
        }
        super::make(&mut bytes, 100, 3).unwrap();
        assert!(bytes.is_empty() && bytes.capacity() >= 100);
    }
}
