//! One monitor's session: its messages, one after the other. Owns the guest's memory, the in-flight
//! memory and the rings; called by the session's own thread only.
//!
//! A ring runs while it has memory, a place, a kick, and is enabled. Messages that change one of
//! these stop it and start it again. Stopping answers all that was taken.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use surface::{Lane, Pool};

use crate::config::{self, F_CONFIG_WCE, F_EVENT_IDX, F_FLUSH, WRITE_CACHE_OFFSET};
use crate::inflight::Inflight;
use crate::memory::{Memory, SLOTS_MAX};
use crate::queue::{Queue, Worker};
use crate::ring::{Notifier, Ring, SIZE_MAX, Setup};
use crate::socket::{Ended, Received, receive, send, send_at_once};
use crate::task::{Target, Task};
use crate::wire::{
    CONFIG_CHANGED, F_PROTOCOL_FEATURES, Header, InflightShape, Message, RingAddresses, Signal, protocol,
};

/// Features of the protocol that are offered.
const PROTOCOL: u64 = protocol::MQ
    | protocol::REPLY_ACK
    | protocol::BACKEND_REQ
    | protocol::CONFIG
    | protocol::INFLIGHT_SHMFD
    | protocol::CONFIGURE_MEM_SLOTS;

/// The channel for messages of the server, and the size that the monitor knows.
#[derive(Default)]
pub struct Channel(Mutex<Told>);

#[derive(Default)]
struct Told {
    socket: Option<OwnedFd>,
    size_bytes: u64,
}

impl Channel {
    /// Notifies the monitor if the size has changed. A message that cannot be sent now is sent
    /// when this is called again.
    pub fn tell(&self, size_bytes: u64) {
        let mut told = self.0.lock();
        if told.size_bytes == size_bytes {
            return;
        }
        if let Some(socket) = &told.socket
            && send_at_once(socket, &Header::request(CONFIG_CHANGED, false, 0))
        {
            told.size_bytes = size_bytes;
        }
    }

    fn open(&self, socket: OwnedFd) {
        self.0.lock().socket = Some(socket);
    }

    fn read(&self, size_bytes: u64) {
        self.0.lock().size_bytes = size_bytes;
    }
}

/// See the module's text.
pub struct Session {
    target: Arc<Target>,
    channel: Arc<Channel>,
    pool: Arc<Pool<Task>>,
    lane: Lane,
    features: u64,
    protocol: u64,
    is_write_back: bool,
    memory: Memory,
    inflight: Option<Inflight>,
    rings: Vec<RingState>,
}

#[derive(Default)]
struct RingState {
    size: u16,
    base: u16,
    addresses: Option<RingAddresses>,
    kick: Option<OwnedFd>,
    call: Option<Notifier>,
    error: Option<Notifier>,
    is_enabled: bool,
    queue: Option<Queue>,
}

/// The answer to a message.
enum Answer {
    /// None of its own.
    None,
    /// This body, and perhaps a descriptor.
    Body(Vec<u8>, Option<OwnedFd>),
}

type Handled = Result<Answer, String>;

impl Session {
    /// A session that has just begun.
    pub fn new(target: Arc<Target>, channel: Arc<Channel>, pool: Arc<Pool<Task>>, queues: u16) -> Self {
        let lane = pool.open();
        channel.read(target.disk.device().size_bytes());
        let rings = (0..queues).map(|_| RingState::default()).collect();
        Self {
            target,
            channel,
            pool,
            lane,
            features: 0,
            protocol: 0,
            is_write_back: true,
            memory: Memory::default(),
            inflight: None,
            rings,
        }
    }

    /// Answers messages until the monitor leaves or breaks the protocol; then all that was taken is
    /// answered, or left to the next server.
    pub fn run(mut self) -> Ended {
        let ended = loop {
            if let Err(ended) = self.next() {
                break ended;
            }
        };
        self.rings.iter_mut().for_each(|ring| {
            ring.queue.take().map(Queue::stop);
        });
        self.pool.close(self.lane);
        ended
    }

    fn next(&mut self) -> Result<(), Ended> {
        let target = Arc::clone(&self.target);
        let socket = target.caller.socket();
        let Received { header, body, descriptors } = receive(socket)?;
        let message = Message::decode(header.request, &body).map_err(Ended::Broken)?;
        if descriptors.len() < message.descriptors() {
            return Err(Ended::Broken("a message came without its descriptors"));
        }
        let has_reply = message.has_reply();
        let (body, beside) = match self.handle(message, descriptors) {
            Ok(Answer::Body(body, beside)) => (body, beside),
            Ok(Answer::None) => (0_u64.to_le_bytes().to_vec(), None),
            Err(why) => {
                target.tell(&format!(
                    "a message ({}) of {}: {why}",
                    header.request,
                    surface::Client::name(&*target.caller)
                ));
                if has_reply || !self.answers(&header) {
                    return Err(Ended::Broken("a message failed"));
                }
                (1_u64.to_le_bytes().to_vec(), None)
            }
        };
        let is_answered = has_reply || self.answers(&header);
        let reply = Header::reply(header.request, body.len());
        if is_answered && !send(socket, &reply, &body, beside.as_ref().map(AsFd::as_fd)) {
            return Err(Ended::Closed);
        }
        Ok(())
    }

    const fn answers(&self, header: &Header) -> bool {
        header.needs_reply && self.protocol & protocol::REPLY_ACK != 0
    }

    fn disk(&self) -> config::Disk {
        let device = self.target.disk.device();
        config::Disk {
            size_bytes: device.size_bytes(),
            is_read_only: device.is_read_only(),
            block_bytes: device.block_bytes(),
            // The server's option is a u16.
            queues: self.rings.len() as u16,
            is_write_back: self.is_write_back,
        }
    }

    fn handle(&mut self, message: Message, descriptors: Vec<OwnedFd>) -> Handled {
        let number = |value: u64| Ok(Answer::Body(value.to_le_bytes().to_vec(), None));
        let mut descriptors = descriptors.into_iter();
        let mut descriptor = || descriptors.next().ok_or_else(|| "it came without a descriptor".to_owned());
        match message {
            Message::GetFeatures => return number(self.disk().features()),
            Message::SetFeatures(features) => {
                let unknown = features & !self.disk().features();
                if unknown != 0 {
                    return Err(format!("features {unknown:#x} are not offered"));
                }
                self.features = features;
                self.set_cache();
                self.settle_all()?;
            }
            Message::SetOwner | Message::ResetOwner => {}
            Message::SetMemory(regions) => {
                self.memory.set(regions.into_iter().zip(descriptors).collect())?;
                self.settle_all()?;
            }
            Message::AddRegion(region) => {
                self.memory.add(region, descriptor()?)?;
                self.settle_all()?;
            }
            Message::RemoveRegion(region) => self.memory.remove(&region)?,
            Message::SetRingSize { ring, size } => {
                let size =
                    u16::try_from(size).ok().filter(|size| (1..=SIZE_MAX).contains(size) && size.is_power_of_two());
                let size = size.ok_or_else(|| format!("a ring's size is a power of two up to {SIZE_MAX}"))?;
                self.change(ring as usize, |ring| ring.size = size)?;
            }
            Message::SetRingAddresses { ring, addresses } => {
                self.change(ring as usize, |ring| ring.addresses = Some(addresses))?;
            }
            Message::SetRingBase { ring, base } => {
                let base = u16::try_from(base).map_err(|_| format!("base {base} is none of a split ring"))?;
                self.change(ring as usize, |ring| ring.base = base)?;
            }
            Message::GetRingBase { ring: index } => {
                self.stop(index as usize)?;
                let ring = self.ring(index as usize)?;
                ring.kick = None;
                let base = u32::from(ring.base);
                return Ok(Answer::Body([index.to_le_bytes(), base.to_le_bytes()].concat(), None));
            }
            Message::SetSignal { ring, signal, has_descriptor } => {
                let file = if has_descriptor { Some(descriptor()?) } else { None };
                self.set_signal(usize::from(ring), signal, file)?;
            }
            Message::GetProtocolFeatures => return number(PROTOCOL),
            Message::SetProtocolFeatures(features) => {
                if features & !PROTOCOL != 0 {
                    return Err(format!("features {:#x} of the protocol are not offered", features & !PROTOCOL));
                }
                self.protocol = features;
            }
            Message::GetQueueCount => return number(self.rings.len() as u64),
            Message::SetRingEnabled { ring, is_enabled } => {
                self.change(ring as usize, |ring| ring.is_enabled = is_enabled)?;
            }
            Message::SetBackendChannel => self.channel.open(descriptor()?),
            Message::GetConfig { offset, size } => return Ok(self.config(offset, size)),
            Message::SetConfig { offset, bytes } => self.set_config(offset, &bytes)?,
            Message::GetInflight(shape) => return self.new_inflight(shape),
            Message::SetInflight(shape) => {
                let inflight = Inflight::take(descriptor()?, shape)?;
                self.is_write_back = !inflight.is_write_through();
                self.set_cache();
                self.set_inflight(inflight)?;
            }
            Message::GetMemorySlots => return number(SLOTS_MAX as u64),
        }
        Ok(Answer::None)
    }

    fn ring(&mut self, index: usize) -> Result<&mut RingState, String> {
        self.rings.get_mut(index).ok_or_else(|| format!("there is no queue {index}"))
    }

    /// Changes a ring that does not run, and starts it if it can.
    fn change(&mut self, index: usize, change: impl FnOnce(&mut RingState)) -> Result<(), String> {
        self.stop(index)?;
        change(self.ring(index)?);
        self.settle(index)
    }

    fn stop(&mut self, index: usize) -> Result<(), String> {
        let target = Arc::clone(&self.target);
        let ring = self.ring(index)?;
        if let Some(queue) = ring.queue.take() {
            target.is_draining.store(true, std::sync::atomic::Ordering::Release);
            ring.base = queue.stop();
            target.is_draining.store(false, std::sync::atomic::Ordering::Release);
        }
        Ok(())
    }

    fn settle_all(&mut self) -> Result<(), String> {
        (0..self.rings.len()).try_for_each(|index| self.settle(index))
    }

    /// Starts a ring if it is to run, and does not.
    fn settle(&mut self, index: usize) -> Result<(), String> {
        // Without features of the protocol a ring is enabled from the start.
        let is_always_enabled = self.features & F_PROTOCOL_FEATURES == 0;
        let has_memory = !self.memory.is_empty();
        let ring = self.ring(index)?;
        let is_ready = has_memory && ring.queue.is_none() && ring.size > 0 && (ring.is_enabled || is_always_enabled);
        let (Some(addresses), Some(kick), true) = (ring.addresses, &ring.kick, is_ready) else { return Ok(()) };
        let fail = |error: &dyn std::fmt::Display| format!("queue {index} cannot start: {error}");
        let kick = kick.try_clone().map_err(|error| fail(&error))?;
        let (size, base, call, error) = (ring.size, ring.base, ring.call.clone(), ring.error.clone());
        let address = |user| {
            self.memory.guest_address(user).ok_or_else(|| fail(&format!("{user:#x} is not in the guest's memory")))
        };
        let tracked = match &self.inflight {
            Some(inflight) => Some(inflight.queue(index, size).map_err(|error| fail(&error))?),
            None => None,
        };
        let setup = Setup {
            size,
            descriptors: address(addresses.descriptors)?,
            available: address(addresses.available)?,
            used: address(addresses.used)?,
            base,
            has_event_index: self.features & F_EVENT_IDX != 0,
            tracked,
            call,
        };
        let memory = self.memory.shared();
        let (started, left) = Ring::start(setup, &memory.current()).map_err(|error| fail(&error))?;
        let (target, pool, lane) = (Arc::clone(&self.target), Arc::clone(&self.pool), self.lane);
        let worker = Worker { index, target, memory, pool, lane, kick, error };
        self.rings[index].queue = Some(Queue::start(worker, started, left).map_err(|error| fail(&error))?);
        Ok(())
    }

    fn set_signal(&mut self, index: usize, signal: Signal, file: Option<OwnedFd>) -> Result<(), String> {
        match signal {
            Signal::Kick => {
                let file = file.ok_or("a ring without kicks would have to be polled, which is not supported")?;
                self.change(index, |ring| ring.kick = Some(file))
            }
            Signal::Call => {
                let ring = self.ring(index)?;
                ring.call = file.map(Notifier::new);
                if let Some(queue) = &ring.queue {
                    queue.ring().set_call(ring.call.clone());
                }
                Ok(())
            }
            Signal::Error => {
                self.ring(index)?.error = file.map(Notifier::new);
                Ok(())
            }
        }
    }

    fn config(&self, offset: u32, size: u32) -> Answer {
        let disk = self.disk();
        // An empty answer means: no such part.
        let part = disk.config(offset, size).unwrap_or_default();
        if !part.is_empty() {
            self.channel.read(disk.size_bytes);
        }
        let header = [offset.to_le_bytes(), (part.len() as u32).to_le_bytes(), [0; 4]].concat();
        Answer::Body([header, part].concat(), None)
    }

    fn set_config(&mut self, offset: u32, bytes: &[u8]) -> Result<(), String> {
        let (WRITE_CACHE_OFFSET, [value], true) = (offset, bytes, self.features & F_CONFIG_WCE != 0) else {
            return Err("nothing of the configuration but the write cache can be changed".to_owned());
        };
        self.is_write_back = *value != 0;
        if let Some(inflight) = &self.inflight {
            inflight.set_write_through(!self.is_write_back);
        }
        self.set_cache();
        if self.is_write_back {
            return Ok(());
        }
        // Writes answered before are durable once the guest relies on that.
        self.target.disk.device().flush().map_err(|error| error.to_string())
    }

    /// A guest that knows no flush expects each write to be durable.
    fn set_cache(&self) {
        let can_flush = self.features & F_FLUSH != 0;
        let has_switch = self.features & F_CONFIG_WCE != 0;
        self.target.disk.set_write_through(!can_flush || (has_switch && !self.is_write_back));
    }

    fn new_inflight(&mut self, shape: InflightShape) -> Handled {
        let InflightShape { queues, queue_size, .. } = shape;
        if queues == 0 || usize::from(queues) > self.rings.len() || !(1..=SIZE_MAX).contains(&queue_size) {
            return Err(format!("{queues} queues of {queue_size} are not possible"));
        }
        let inflight = Inflight::create(shape)?;
        inflight.set_write_through(!self.is_write_back);
        let body = inflight.shape().encode().to_vec();
        let beside = inflight.file().try_clone_to_owned().map_err(|error| error.to_string())?;
        self.set_inflight(inflight)?;
        Ok(Answer::Body(body, Some(beside)))
    }

    /// Rings that run mark their requests in it from then on.
    fn set_inflight(&mut self, inflight: Inflight) -> Result<(), String> {
        (0..self.rings.len()).try_for_each(|index| self.stop(index))?;
        self.inflight = Some(inflight);
        self.settle_all()
    }
}
