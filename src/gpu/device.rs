//! The devices that this process sees.

use std::fs;

use cudarc::driver::result::device;
use cudarc::driver::sys::{CUdevice, CUdevice_attribute, CUuuid};
use cudarc::driver::{CudaContext, DriverError, result};
use mpienv_core::ClusterInfo;
use mpienv_core::seam::counted;

use crate::{GpuError, Result, library};

/// A GPU, as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number among the devices that this process sees, from 0.
    pub ordinal: u32,
    /// Such as `NVIDIA H200`.
    pub name: String,
    /// Such as `GPU-8f1c52a1-7c1e-4d0a-9d7e-0d6f0a1b2c3d`, the same in all processes.
    pub uuid: String,
    /// Such as `0000:3b:00.0`.
    pub pci_address: String,
    /// The NUMA node of its host that it is attached to, if the system tells.
    pub numa_node: Option<u32>,
    /// Bytes of its memory.
    pub memory_total: u64,
    /// Such as `(9, 0)`.
    pub compute_capability: (i32, i32),
    /// The newest version of CUDA that the driver supports, such as `13.0`.
    pub driver: String,
}

impl Device {
    /// The device of a rank: the one of its local rank, or the only one that the launcher shows it.
    ///
    /// # Errors
    /// NVIDIA's driver is missing, or this rank has no device.
    pub fn of_rank(info: &ClusterInfo) -> Result<Device> {
        let devices = devices()?;
        let ordinal = match info.device_index() {
            // A single process may see no list, and then takes the first device.
            None if info.local_world_size() == Some(1) => Some(0),
            index => index.or_else(|| info.local_rank()),
        };
        let device = ordinal.and_then(|ordinal| devices.get(ordinal as usize).cloned());
        device.ok_or_else(|| {
            let place = info.local_rank().map(|rank| format!(" (local rank {rank})"));
            let (rank, place) = (info.rank().index(), place.unwrap_or_default());
            let seen = counted(devices.len(), "device");
            GpuError::new(
                format!("rank {rank}{place} has no GPU: it sees {seen}"),
                "start as many ranks on each host as it has GPUs, or ask the scheduler for more of \
                 them",
            )
        })
    }

    /// Bytes of its memory that no program uses now.
    ///
    /// # Errors
    /// The driver cannot open the device.
    pub fn memory_free(&self) -> Result<u64> {
        let wrong = |error| GpuError::from_driver("ask for the device's memory", error);
        let context = CudaContext::new(self.ordinal as usize).map_err(wrong)?;
        Ok(context.mem_get_info().map_err(wrong)?.0 as u64)
    }
}

/// Returns the devices that this process sees, which `CUDA_VISIBLE_DEVICES` may limit.
///
/// # Errors
/// NVIDIA's driver is missing, sees no device, or does not fit the system.
pub fn devices() -> Result<Vec<Device>> {
    library::DRIVER.check()?;
    let list = || {
        result::init()?;
        let driver = version(driver_version()?);
        let describe = |ordinal| described(ordinal, driver.clone());
        (0..device::get_count()?).map(describe).collect::<std::result::Result<Vec<_>, _>>()
    };
    list().map_err(|error| GpuError::from_driver("list the devices", error))
}

#[expect(unsafe_code, reason = "the driver is a C library, and the calls take numbers of devices")]
fn described(ordinal: i32, driver: String) -> std::result::Result<Device, DriverError> {
    use CUdevice_attribute as Attribute;
    let handle: CUdevice = device::get(ordinal)?;
    // SAFETY: the driver has just returned the handle.
    let attribute = |which| unsafe { device::get_attribute(handle, which) };
    let pci_address = format!(
        "{:04x}:{:02x}:{:02x}.0",
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?
    );
    let numa = fs::read_to_string(format!("/sys/bus/pci/devices/{pci_address}/numa_node"));
    Ok(Device {
        ordinal: ordinal.unsigned_abs(),
        name: device::get_name(handle)?,
        uuid: uuid(device::get_uuid(handle)?),
        numa_node: numa.ok().and_then(|node| node.trim().parse().ok()),
        pci_address,
        // SAFETY: as above.
        memory_total: unsafe { device::total_mem(handle) }? as u64,
        compute_capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        driver,
    })
}

#[expect(unsafe_code, reason = "the driver is a C library")]
fn driver_version() -> std::result::Result<i32, DriverError> {
    let mut version = 0;
    // SAFETY: the driver writes one number.
    unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut version) }.result()?;
    Ok(version)
}

/// The driver counts 1000 for each major version and 10 for each minor one.
fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// As nvidia-smi writes it.
fn uuid(found: CUuuid) -> String {
    let hex: String = found.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("GPU-{}", parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_and_the_driver_are_called_as_nvidia_smi_calls_them() {
        assert_eq!([version(13_000), version(12_080)], ["13.0", "12.8"]);
        let mut bytes = [0; 16];
        (bytes[0], bytes[15]) = (0x0f, -1);
        assert_eq!(uuid(CUuuid { bytes }), "GPU-0f000000-0000-0000-0000-0000000000ff");
    }
}
