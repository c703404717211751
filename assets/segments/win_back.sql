-- title: People whom we have not seen for a while
-- owner: team:growth
-- description: Active people who opted in and stayed away for at least `quiet_days` but at most `lost_days`; older
--   addresses bounce too often. Those who left last come first. Somebody who never came back after signing up counts
--   from the day of signing up.
-- param quiet_days int = 90: days without a visit after which somebody counts as away
-- param lost_days int = 540: days without a visit after which we give up
-- param country text = null: two letters such as VN; null takes all countries

SELECT user_id, email, timezone, locale, first_name, city, country, tier
FROM users
WHERE is_active
  AND marketing_opt_in
  AND coalesce(last_login_at, created_at) <= :as_of - make_interval(days => :quiet_days)
  AND coalesce(last_login_at, created_at) > :as_of - make_interval(days => :lost_days)
  AND (:country IS NULL OR country = upper(:country))
ORDER BY coalesce(last_login_at, created_at) DESC, user_id
