//! Guides to topics that do not belong to a single item.

#[doc = include_str!("guide/variables.md")]
pub mod variables {}

#[doc = include_str!("guide/programs.md")]
pub mod programs {}

#[doc = include_str!("guide/findings.md")]
pub mod findings {}

#[doc = include_str!("guide/hangs.md")]
pub mod hangs {}

#[doc = include_str!("guide/platforms.md")]
pub mod platforms {}

#[doc = include_str!("guide/containers.md")]
pub mod containers {}

#[doc = include_str!("guide/launch.md")]
pub mod launch {}

#[doc = include_str!("guide/security.md")]
pub mod security {}

#[doc = include_str!("guide/comparison.md")]
pub mod comparison {}

#[doc = include_str!("guide/wire_format.md")]
pub mod wire_format {}

#[doc = include_str!("guide/test_results.md")]
pub mod test_results {}
