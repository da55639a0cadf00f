//! The three resolutions, and the bounds of each. Pure; owns nothing.

/// A resolution of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Each second, for two hours.
    Seconds,
    /// Each 10 s, for a week.
    Tens,
    /// Each 5 minutes, for 400 days.
    Minutes,
}

impl Tier {
    /// From the finest to the coarsest.
    pub const ALL: [Self; 3] = [Self::Seconds, Self::Tens, Self::Minutes];

    /// Its number in keys of the table.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The tier of a number.
    pub fn by_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.number() == number)
    }

    /// Seconds of a step.
    pub const fn step_s(self) -> u64 {
        match self {
            Self::Seconds => 1,
            Self::Tens => 10,
            Self::Minutes => 300,
        }
    }

    /// Seconds of a frame. Each is a multiple of the step of the tier above, so that a frame fills
    /// whole steps there.
    pub const fn frame_s(self) -> u64 {
        match self {
            Self::Seconds => 60,
            Self::Tens => 600,
            Self::Minutes => 6 * 3600,
        }
    }

    /// Steps of a frame.
    pub const fn points(self) -> usize {
        (self.frame_s() / self.step_s()) as usize
    }

    /// How long frames are kept.
    pub const fn kept_s(self) -> u64 {
        match self {
            Self::Seconds => 2 * 3600,
            Self::Tens => 7 * 86_400,
            Self::Minutes => 400 * 86_400,
        }
    }

    /// Limit on objects with series of their own in a frame.
    pub const fn objects_max(self) -> usize {
        match self {
            Self::Seconds => 256,
            Self::Tens => 128,
            Self::Minutes => 32,
        }
    }

    /// Series of a frame.
    pub const fn series_max(self) -> usize {
        match self {
            Self::Seconds => 3600,
            Self::Tens => 2000,
            Self::Minutes => 400,
        }
    }

    /// Its part of `budget`: 1 : 4 : 3, the sizes of the tiers when all slots are active.
    pub const fn part_of(self, budget: u64) -> u64 {
        let eighths = match self {
            Self::Seconds => 1,
            Self::Tens => 4,
            Self::Minutes => 3,
        };
        budget / 8 * eighths
    }

    /// The first second of the frame that holds `second`.
    pub const fn start_of(self, second: u64) -> u64 {
        second - second % self.frame_s()
    }

    /// The tier that frames of this one are summed up in.
    pub const fn above(self) -> Option<Self> {
        match self {
            Self::Seconds => Some(Self::Tens),
            Self::Tens => Some(Self::Minutes),
            Self::Minutes => None,
        }
    }

    /// The tier that it is summed up from.
    pub const fn below(self) -> Option<Self> {
        match self {
            Self::Seconds => None,
            Self::Tens => Some(Self::Seconds),
            Self::Minutes => Some(Self::Tens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fills_whole_steps_of_the_tier_above() {
        for tier in Tier::ALL {
            assert_eq!(tier.frame_s() % tier.step_s(), 0);
            assert_eq!(Tier::by_number(tier.number()), Some(tier));
            if let Some(above) = tier.above() {
                assert_eq!((tier.frame_s() % above.step_s(), above.frame_s() % tier.frame_s()), (0, 0));
                assert_eq!(above.below(), Some(tier));
            }
        }
        assert_eq!(Tier::ALL.map(|tier| tier.part_of(128)), [16, 64, 48]);
        assert_eq!(Tier::by_number(3), None);
    }
}
